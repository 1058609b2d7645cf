#!/usr/bin/env bash
# Builds the image and pushes it to the Amazon ECR of the account whose credentials the AWS command line finds. The last line
# that it prints is the image's URI. Safe to run again.
#
# usage: build_and_push.sh NAME [options]
#   --target cpu|gpu     which image (cpu)
#   --region REGION      default: AWS_REGION, or what `aws configure get region` says
#   --tag TAG            one more tag; the version and the commit are tags in any case
#   --immutable          tags of a new repository can't be moved
#   --registry HOST      push there instead of to the account's own host
#   --build-arg K=V      for the Dockerfile; may be given again
#   --dry-run            print the commands; needs neither AWS nor docker
set -euo pipefail

usage() { sed -n '5,12s/^# \{0,1\}//p' "$0" >&2; exit 2; }
fail() { printf 'build_and_push: %s\n' "$*" >&2; exit 1; }

name='' target=cpu region='' tag='' mutability=MUTABLE registry='' dry_run='' build_args=()
while [ $# -gt 0 ]; do
    case $1 in
        --target | --region | --tag | --registry | --build-arg)
            [ $# -ge 2 ] || fail "$1 needs a value"
            case $1 in
                --target) target=$2 ;;
                --region) region=$2 ;;
                --tag) tag=$2 ;;
                --registry) registry=$2 ;;
                --build-arg) build_args+=(--build-arg "$2") ;;
            esac
            shift 2
            ;;
        --immutable) mutability=IMMUTABLE; shift ;;
        --dry-run) dry_run=1; shift ;;
        -* | '') usage ;;
        *) [ -z "$name" ] || usage; name=$1; shift ;;
    esac
done
[ -n "$name" ] || usage
case $target in cpu | gpu) ;; *) fail "--target is cpu or gpu, not $target" ;; esac
cd "$(dirname "$0")"

# run COMMAND...: runs it, or prints it in a dry run.
run() {
    if [ -n "$dry_run" ]; then { printf '+'; printf ' %q' "$@"; printf '\n'; } >&2; else "$@"; fi
}

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
revision=$(git rev-parse --short=12 HEAD)
# What isn't committed has no commit's name.
[ -z "$(git status --porcelain --untracked-files=no)" ] || revision=$revision-dirty
suffix=$([ "$target" = cpu ] || echo "-$target")
tags=("$version$suffix" "$revision$suffix" ${tag:+"$tag"})

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

build=(docker build --target "$target" --platform linux/amd64 --build-arg "VERSION=$version" --build-arg "REVISION=$revision")
for image in "${images[@]}"; do build+=(--tag "$image"); done
run "${build[@]}" ${build_args[@]+"${build_args[@]}"} . >&2

host=${repository%%/*}
if [ -n "$dry_run" ]; then
    printf '+ aws ecr get-login-password --region %s | docker login --username AWS --password-stdin %s\n' "$region" "$host" >&2
else
    aws ecr get-login-password --region "$region" | docker login --username AWS --password-stdin "$host" >&2
fi

# A tag that can't be moved and is there already has this very version or commit.
present() {
    [ -z "$dry_run" ] && [ "$(describe 'repositories[0].imageTagMutability')" = IMMUTABLE ] &&
        aws ecr describe-images --region "$region" --repository-name "$name" --image-ids "imageTag=${1##*:}" >/dev/null 2>&1
}
for image in "${images[@]}"; do
    if present "$image"; then
        printf '%s is there already, and immutable\n' "$image" >&2
    else
        run docker push --quiet "$image" >&2
    fi
done
printf '%s\n' "${images[1]}"
