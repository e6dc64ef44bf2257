# syntax=docker/dockerfile:1

# The wheels, built once: this stage has the C compiler, and nothing of it but the wheels goes on.
FROM python:3.11-slim AS build
# Debian keeps one version of each.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --wheel-dir /wheels '.[oidc,redis,tracing]'

FROM python:3.11-slim
# By number, so that Kubernetes can see that it is not root.
RUN groupadd --gid 10001 penstock \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/penstock --shell /usr/sbin/nologin penstock \
    && install --directory --mode=0700 --owner=10001 --group=10001 /var/lib/penstock
# There is one version of each among the wheels.
# hadolint ignore=DL3013
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --root-user-action=ignore --no-index --find-links=/wheels 'penstock[oidc,redis,tracing]'

USER 10001:10001
WORKDIR /var/lib/penstock
VOLUME /var/lib/penstock
EXPOSE 1883 7700 8080 9464

# Asked by the health check, so it is on unless --admin or this variable says another address.
ENV PENSTOCK_ADMIN=127.0.0.1:9464
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9464/healthz', timeout=4)"]

# As `penstock`, but `serve` is reachable and not open: it makes a password at the first start, and prints it.
ENTRYPOINT ["python", "-P", "-m", "penstock.container"]
CMD ["serve", "--data", "/var/lib/penstock/data"]
