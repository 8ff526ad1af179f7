#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Steps of the build stages: `dependencies FLAVOUR [pip options]` fills /opt/sglang from the hashed list, and gives it a CUDA
# toolkit if the flavour is cuda;
# `fork KERNEL_ARCHS MANIFEST_SHA256` builds our two wheels from the context and puts them there.
set -eu
tools=/opt/build-tools
target=/opt/sglang
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore

pip_into() { # PREFIX ARGUMENTS...: pip of the tools' environment, so that the final one carries none
    prefix=$1
    shift
    "$tools/bin/pip" --python "$prefix/bin/python" "$@"
}

cuda_toolkit() { # the toolkit of the environment's wheels, in the layout that nvcc's callers know
    wheels=$("$target/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/cu13
    mkdir -p "$target/cuda/bin" "$target/cuda/lib64/stubs"
    ln -s "$wheels/include" "$wheels/nvvm" "$target/cuda/"
    # One by one: nvcc looks for the libraries beside the folder that it was called from.
    ln -s "$wheels"/bin/* "$target/cuda/bin/"
    ln -s "$wheels"/lib/*.a "$target/cuda/lib64/"
    for library in "$wheels"/lib/lib*.so.*; do
        name=${library##*/}
        ln -sf "$library" "$target/cuda/lib64/${name%%.so.*}.so"
    done
    # The driver brings libcuda with the machine; for linking its name is enough.
    echo | c++ -shared -x c++ - -Wl,-soname,libcuda.so.1 -o "$target/cuda/lib64/stubs/libcuda.so"
}

case $1 in
dependencies)
    flavour=$2
    shift 2
    python3 -m venv "$tools"
    python3 -m venv --without-pip "$target"
    "$tools/bin/pip" install --quiet --require-hashes -r docker/requirements/build.txt
    pip_into "$target" install --no-compile --progress-bar off --require-hashes --only-binary :all: \
        -r "docker/requirements/$flavour.txt" "$@"
    if [ "$flavour" = cuda ]; then
        cuda_toolkit
    fi
    ;;
fork)
    archs=$2
    wanted=$3
    "$tools/bin/python" -m fork build --out /tmp/wheels
    PATH="$tools/bin:$target/cuda/bin:$PATH" DDTREE_CUDA_ARCHS="$archs" \
        "$tools/bin/pip" wheel --quiet --no-build-isolation --no-deps -w /tmp/wheels ./sgl-kernel
    pip_into "$target" install --no-compile --no-deps --no-index /tmp/wheels/*.whl
    packages=$("$target/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    # Where CMake finds no nvcc, it builds the CPU's half alone and says so in a log that nobody reads.
    if [ "$archs" != cpu ] && [ ! -e "$packages/sgl_kernel_ddtree/lib/libddtree_cuda.so" ]; then
        echo "the CUDA kernels were not built" >&2
        exit 1
    fi
    manifest=$packages/sglang/_ddtree_manifest.json
    built=$(sha256sum "$manifest" | cut -d ' ' -f 1)
    if [ -n "$wanted" ] && [ "$wanted" != "$built" ]; then
        echo "MANIFEST_SHA256 says $wanted, but this context builds $built; leave the argument out or use make image" >&2
        exit 1
    fi
    # The server's processes would each compile these for themselves: the file system that they run on is read-only to them.
    "$target/bin/python" -m compileall -qq -j 0 "$target/lib" || true
    ;;
*)
    echo "install.sh: unknown step $1" >&2
    exit 2
    ;;
esac
