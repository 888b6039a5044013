{{- define "jobqueue-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- /*
The release's name and the chart's, without saying "jobqueue" twice: the release
"jobqueue" gives "jobqueue-operator", which is also the name that kustomize gives.
50 characters leave room for the suffixes of the objects.
*/}}
{{- define "jobqueue-operator.fullname" -}}
{{- $name := include "jobqueue-operator.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else if hasPrefix .Release.Name $name }}
{{- $name }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* Names of cluster-wide objects: another release in another namespace has others. */}}
{{- define "jobqueue-operator.clusterName" -}}
{{- $fullname := include "jobqueue-operator.fullname" . }}
{{- if eq .Release.Namespace "jobqueue-system" }}
{{- $fullname }}
{{- else }}
{{- printf "%s-%s" $fullname .Release.Namespace }}
{{- end }}
{{- end }}

{{- /* Releases beside each other in one namespace elect a leader each. */}}
{{- define "jobqueue-operator.lease" -}}
{{- include "jobqueue-operator.fullname" . | trimPrefix "jobqueue-" }}.jobqueue.dev
{{- end }}

{{- define "jobqueue-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "jobqueue-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "jobqueue-operator.labels" -}}
{{ include "jobqueue-operator.selectorLabels" . }}
app.kubernetes.io/part-of: jobqueue
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "jobqueue-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "jobqueue-operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "jobqueue-operator.image" -}}
{{- $image := printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- with .Values.image.digest }}{{ $image = printf "%s@%s" $image . }}{{ end }}
{{- $image }}
{{- end }}

{{- define "jobqueue-operator.subject" -}}
- kind: ServiceAccount
  name: {{ include "jobqueue-operator.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}
