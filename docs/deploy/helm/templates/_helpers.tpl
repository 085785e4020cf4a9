{{- define "coffer.name" -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{- end }}
{{- define "coffer.selector" -}}
app.kubernetes.io/name: coffer
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "coffer.labels" -}}
{{ include "coffer.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
{{- define "coffer.meta" -}}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "coffer.labels" . | nindent 4 }}
{{- end }}
