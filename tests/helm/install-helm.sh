#!/usr/bin/env bash
# Builds the helm that tests/helm runs into a folder: install-helm.sh FOLDER
# Takes some minutes at first, seconds where Go has built it before, and nothing where it is there.
set -euo pipefail

version=v3.22.0
folder=$(realpath "$1")

if ! command -v go >/dev/null; then
    echo "install-helm: Go is missing; apt-get install golang-go" >&2
    exit 1
fi
if go version -m "$folder/helm" 2>/dev/null | grep -qP "\tmod\thelm.sh/helm/v3\t\Q$version\E\b"; then
    exit 0
fi
minor=$(go env GOVERSION | sed -E 's/^go1\.([0-9]+).*/\1/')
if ((minor < 21)); then
    # From then on Go fetches the version that a program asks for.
    echo "install-helm: Go 1.21 or newer is needed, not $(go env GOVERSION)" >&2
    exit 1
fi
GOBIN=$folder GOTOOLCHAIN=auto CGO_ENABLED=0 nice go install -trimpath -ldflags='-s -w' "helm.sh/helm/v3/cmd/helm@$version"
