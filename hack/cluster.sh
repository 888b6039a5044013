# Functions for scripts that need a cluster: sourced, not run.
#
# Without KUBECONFIG it is the local cluster (hack/localcluster), which lives in a network
# namespace without a way out, so everything that talks to it runs through `in_cluster`.
# With KUBECONFIG it is the user's own; then
#   DATABASE_URL  is a PostgreSQL that both this machine and the cluster's pods reach, and
#   IMAGE         is an image that the cluster can pull, or (kind) one that is loaded here.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=$root/bin
cluster_name=${JOBQUEUE_CLUSTER:-jobqueue}
image=${IMAGE:-docker.io/jobqueue/jobqueue:dev}
own_cluster=${KUBECONFIG:-}

say() { printf '\n==> %s\n' "$*"; }

localcluster() { "$bin/localcluster" --name "$cluster_name" "$@"; }

in_cluster() {
  if [[ -n $own_cluster ]]; then "$@"; else localcluster exec -- "$@"; fi
}

kubectl() {
  if [[ -n $own_cluster ]]; then command kubectl "$@"; else localcluster kubectl "$@"; fi
}

helm() { in_cluster "$bin/helm" "$@"; }

build_helm() {
  [[ -x $bin/helm && $bin/helm -nt $root/hack/tools/go.mod ]] && return
  say "Building helm"
  go -C "$root/hack/tools" build -o "$bin/helm" helm.sh/helm/v3/cmd/helm
}

# cluster_up MAX_CONNECTIONS brings up the cluster and PostgreSQL, loads the image and sets DATABASE_URL.
cluster_up() {
  if [[ -n $own_cluster ]]; then
    : "${DATABASE_URL:?with KUBECONFIG set, DATABASE_URL must name a PostgreSQL that this machine and the pods of the cluster reach}"
    local context
    context=$(kubectl config current-context)
    if [[ $context == kind-* ]] && command -v kind >/dev/null; then
      say "Loading $image into $context"
      kind load image-archive --name "${context#kind-}" "$bin/jobqueue-image.tar"
    fi
    return
  fi
  say "Starting the local cluster \"$cluster_name\" (the first time, Kubernetes is compiled: about ten minutes on two cores)"
  localcluster up
  say "Starting PostgreSQL with $1 connections"
  localcluster postgres up --max-connections "$1"
  DATABASE_URL=$(localcluster postgres url)
  say "Loading $image"
  localcluster load "$bin/jobqueue-image.tar"
}

cluster_down() {
  if [[ -z $own_cluster ]]; then localcluster down; fi
}

# own_namespace is marked by what is installed here, so that nothing else is replaced or removed.
own_namespace=jobqueue-system
marked() { [[ $(kubectl get namespace $own_namespace --ignore-not-found -o 'jsonpath={.metadata.labels.jobqueue\.dev/demo}') == true ]]; }

# install_operator installs or upgrades both charts.
install_operator() {
  build_helm
  if [[ -n $own_cluster ]] && ! marked && [[ -n $(kubectl get crd jobqueues.jobqueue.dev --ignore-not-found -o name) ]]; then
    echo "This cluster has a JobQueue operator already, which the demo would replace by its own. Use another cluster, or uninstall it first." >&2
    exit 1
  fi
  local repository=$image tag=latest
  if [[ $image == *@* ]]; then
    echo "IMAGE is $image: give a tag, not a digest." >&2
    exit 1
  elif [[ ${image##*/} == *:* ]]; then
    repository=${image%:*} tag=${image##*:}
  fi
  say "Installing the charts"
  # On a cluster of one's own nothing is to be left behind, not even the kinds.
  helm upgrade --install jobqueue-crds "$root/charts/jobqueue-crds" --namespace $own_namespace --create-namespace --set keep=false --wait
  kubectl label namespace $own_namespace jobqueue.dev/demo=true --overwrite
  helm upgrade --install jobqueue "$root/charts/jobqueue-operator" --namespace $own_namespace \
    --set "image.repository=$repository" --set "image.tag=$tag" --set image.pullPolicy=IfNotPresent --wait --timeout 3m
}
