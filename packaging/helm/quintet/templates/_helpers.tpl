{{- define "quintet.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "quintet.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "quintet.labels" -}}
{{ include "quintet.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "quintet.account" -}}
{{- .Values.serviceAccount.name | default (include "quintet.name" .) -}}
{{- end -}}

{{/* Not empty where keys are told otherwise than by the secret: by a store, or in the environment. */}}
{{- define "quintet.keys" -}}
{{- range .Values.arguments -}}
{{- if or (eq . "--keys") (hasPrefix "--keys=" .) -}}{{ . }}{{- end -}}
{{- end -}}
{{- range .Values.env -}}
{{- if has .name (list "QUINTET_KEYS" "QUINTET_API_KEY" "QUINTET_API_KEY_FILE") -}}{{ .name }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Not empty where the environment says which hosts are answered to, which an argument would replace. */}}
{{- define "quintet.hosts" -}}
{{- range .Values.env -}}
{{- if eq .name "QUINTET_ALLOWED_HOST" -}}{{ .name }}{{- end -}}
{{- end -}}
{{- end -}}
