#!/usr/bin/env bash
# Builds the image and pushes it to the Amazon ECR of the account whose credentials the AWS command line finds. The last line
# that it prints is the image's URI. Safe to run again.
#
# usage: build_and_push.sh NAME [options]
#   --target cpu|gpu     which image (cpu)
#   --region REGION      default: AWS_REGION, or what `aws configure get region` says
#   --tag TAG            one more tag; the version and the commit are tags in any case
#   --immutable          tags of a new repository can't be moved; what is there from other sources or arguments is an error
#   --registry HOST      push there instead of to the account's own host
#   --build-arg K=V      for the Dockerfile; may be given again. The gpu target needs ACCEPT_NVIDIA_LICENCES=yes
#   --revision NAME      instead of git's commit, for sources that aren't a git checkout
#   --no-sbom            leaves out the list of what is in the binary, which needs cargo and Python
#   --dry-run            print the commands; needs neither AWS nor docker
set -euo pipefail

usage() { sed -n '5,14s/^# \{0,1\}//p' "$0" >&2; exit 2; }
fail() { printf 'build_and_push: %s\n' "$*" >&2; exit 1; }

name='' target=cpu region='' tag='' mutability=MUTABLE registry='' dry_run='' revision='' sbom=1 build_args=()
while [ $# -gt 0 ]; do
    case $1 in
        --target | --region | --tag | --registry | --build-arg | --revision)
            [ $# -ge 2 ] || fail "$1 needs a value"
            case $1 in
                --target) target=$2 ;;
                --region) region=$2 ;;
                --tag) tag=$2 ;;
                --registry) registry=$2 ;;
                --revision) revision=$2 ;;
                --build-arg) build_args+=(--build-arg "$2") ;;
            esac
            shift 2
            ;;
        --immutable) mutability=IMMUTABLE; shift ;;
        --no-sbom) sbom=''; shift ;;
        --dry-run) dry_run=1; shift ;;
        -* | '') usage ;;
        *) [ -z "$name" ] || usage; name=$1; shift ;;
    esac
done
[ -n "$name" ] || usage
case $target in cpu | gpu) ;; *) fail "--target is cpu or gpu, not $target" ;; esac
if [ "$target" = gpu ] && [[ " ${build_args[*]-} " != *" ACCEPT_NVIDIA_LICENCES=yes "* ]]; then
    fail "the gpu image contains TensorRT, CUDA libraries and cuDNN under NVIDIA's licences;" \
        "read them, and accept them with --build-arg ACCEPT_NVIDIA_LICENCES=yes"
fi
cd "$(dirname "$0")"

# run COMMAND...: runs it, or prints it in a dry run.
run() {
    if [ -n "$dry_run" ]; then { printf '+'; printf ' %q' "$@"; printf '\n'; } >&2; else "$@"; fi
}

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
# A tarball of the sources may lie in another project's checkout: the commit has to be of this folder.
if [ -z "$revision" ]; then
    if ! top=$(git rev-parse --show-toplevel 2>/dev/null) || [ "$top" != "$(pwd -P)" ]; then
        fail "this folder is no git checkout, and images are called by their commit; --revision NAME gives another name"
    fi
    revision=$(git rev-parse --short=12 HEAD)
    # What isn't committed has no commit's name.
    [ -z "$(git status --porcelain --untracked-files=no)" ] || revision=$revision-dirty
fi
[[ $revision =~ ^[A-Za-z0-9_.-]{1,100}$ ]] || fail "--revision can't be $revision: letters, digits, dots, hyphens"
suffix=$([ "$target" = cpu ] || echo "-$target")
tags=("$version$suffix" "$revision$suffix" ${tag:+"$tag"})

# sources: what the image is made of besides the commit: arguments, a model's files, and changes that aren't committed.
sources() {
    local argument file
    printf '%s\n' "$target" "$version" "$revision"
    for argument in ${build_args[@]+"${build_args[@]}"}; do
        if [ "$argument" != --build-arg ]; then printf '%s\n' "$argument"; fi
    done | sort
    for argument in ${build_args[@]+"${build_args[@]}"}; do
        case $argument in
            MODEL=?*)
                find "${argument#MODEL=}" -type f | sort | while read -r file; do sha256sum "$file"; done
                ;;
        esac
    done
    if [[ $revision = *-dirty ]]; then git diff HEAD; fi
}
build_label=foretype.build
build_hash=$(sources | sha256sum | cut -c 1-16)

if [ -n "$dry_run" ]; then
    region=${region:-${AWS_REGION:-REGION}}
    repository=${registry:-REGISTRY-OF-THE-ACCOUNT}/$name
    run aws sts get-caller-identity --query Account --output text
    run aws ecr describe-repositories --region "$region" --repository-names "$name"
    run aws ecr create-repository --region "$region" --repository-name "$name" \
        --image-scanning-configuration scanOnPush=true --image-tag-mutability "$mutability"
else
    command -v aws >/dev/null || fail "the AWS command line is missing: pip install awscli"
    command -v docker >/dev/null || fail "docker is missing"
    account=$(aws sts get-caller-identity --query Account --output text) ||
        fail "AWS doesn't know who you are; try: aws configure"
    region=${region:-${AWS_REGION:-${AWS_DEFAULT_REGION:-$(aws configure get region || true)}}}
    [ -n "$region" ] || fail "no region is set; use --region"
    # ECR says itself how the account's host is called; it differs among the partitions of AWS.
    describe() {
        aws ecr describe-repositories --region "$region" --registry-id "$account" --repository-names "$name" \
            --query "$1" --output text
    }
    if ! repository=$(describe 'repositories[0].repositoryUri' 2>/dev/null); then
        printf 'creating the repository %s in %s\n' "$name" "$region" >&2
        aws ecr create-repository --region "$region" --repository-name "$name" \
            --image-scanning-configuration scanOnPush=true --image-tag-mutability "$mutability" >/dev/null
        repository=$(describe 'repositories[0].repositoryUri')
    fi
    repository=${registry:-${repository%%/*}}/$name
fi

images=()
for tag in "${tags[@]}"; do images+=("$repository:$tag"); done

host=${repository%%/*}
login() {
    if [ -n "$dry_run" ]; then
        printf '+ aws ecr get-login-password --region %s | docker login --username AWS --password-stdin %s\n' "$region" "$host" >&2
    else
        aws ecr get-login-password --region "$region" | docker login --username AWS --password-stdin "$host" >&2
    fi
}
login

# digest TAG: of an image that is there already.
digest() {
    aws ecr describe-images --region "$region" --repository-name "$name" --image-ids "imageTag=$1" \
        --query 'imageDetails[0].imageDigest' --output text 2>/dev/null
}
# A tag that can't be moved: what is there has to be what would be pushed. The label tells, not the tag: the same commit may have been
# built with other arguments.
kept=()
if [ -z "$dry_run" ] && [ "$(describe 'repositories[0].imageTagMutability')" = IMMUTABLE ]; then
    for image in "${images[@]}"; do
        tag=${image##*:}
        if ! found=$(digest "$tag"); then continue; fi
        docker pull --quiet "$repository@$found" >/dev/null
        there=$(docker image inspect --format "{{index .Config.Labels \"$build_label\"}}" "$repository@$found")
        if [ "$there" = "$build_hash" ]; then
            printf '%s is there already, from the same sources and arguments\n' "$image" >&2
            kept+=("$image")
        elif [ "$tag" = "$version$suffix" ]; then
            printf '%s stays what it is: the first image of this version, from other sources or arguments\n' "$image" >&2
            kept+=("$image")
        else
            fail "$image is there already, was built from other sources or arguments, and can't be moved." \
                "Use another --revision or --tag, or another repository"
        fi
    done
fi
is_kept() { local one; for one in ${kept[@]+"${kept[@]}"}; do if [ "$one" = "$1" ]; then return 0; fi; done; return 1; }

if [ -n "$sbom" ]; then
    run tools/sbom.sh sbom.cdx.json >&2
    build_args+=(--build-arg SBOM=sbom.cdx.json)
fi

# SageMaker takes one image with a Docker manifest. BuildKit would make an index of an image and its provenance, in OCI's types.
build=(docker build)
if [ -n "$dry_run" ] || docker buildx version >/dev/null 2>&1; then
    build=(docker buildx build --provenance=false --sbom=false --output type=docker)
fi
build+=(--target "$target" --platform linux/amd64 --label "$build_label=$build_hash")
build+=(--build-arg "VERSION=$version" --build-arg "REVISION=$revision")
for image in "${images[@]}"; do if ! is_kept "$image"; then build+=(--tag "$image"); fi; done
if is_kept "${images[1]}"; then
    printf 'nothing is built\n' >&2
else
    run "${build[@]}" ${build_args[@]+"${build_args[@]}"} . >&2
fi

# media_type IMAGE: of its manifest, as the registry has it.
media_type() {
    if [ -z "$registry" ]; then
        aws ecr batch-get-image --region "$region" --repository-name "$name" --image-ids "imageTag=${1##*:}" \
            --query 'images[0].imageManifestMediaType' --output text
    else
        local manifest
        manifest=$(docker manifest inspect --insecure "$1") && sed -n '/"mediaType"/ { s/.*"mediaType": *"\([^"]*\)".*/\1/p; q }' <<<"$manifest"
    fi
}
taken=application/vnd.docker.distribution.manifest.v2+json
for image in "${images[@]}"; do
    if is_kept "$image"; then continue; fi
    if is_kept "${images[1]}"; then
        # One more tag for what is there.
        run docker pull --quiet "${images[1]}" >&2
        run docker tag "${images[1]}" "$image"
    fi
    run docker push --quiet "$image" >&2
    if [ -n "$dry_run" ]; then continue; fi
    type=$(media_type "$image") || fail "$image is pushed, but its manifest can't be read to see whether SageMaker takes it"
    [ "$type" = "$taken" ] ||
        fail "$image is pushed, but SageMaker doesn't take its manifest: it is ${type:-of no type}, and has to be $taken." \
            "Docker's containerd image store makes those; use a builder without it, or turn it off"
done
# The list beside the image, for scanners that look there; it is inside, too, as /opt/foretype/sbom/sbom.cdx.json.
if [ -n "$sbom" ] && ! is_kept "${images[1]}"; then
    if [ -n "$dry_run" ] || command -v oras >/dev/null; then
        run oras attach --artifact-type application/vnd.cyclonedx+json "${images[1]}" sbom.cdx.json:application/vnd.cyclonedx+json >&2
    else
        printf 'the SBOM is inside the image; with oras installed it would be attached to it, too\n' >&2
    fi
fi
printf '%s\n' "${images[1]}"
