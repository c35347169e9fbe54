{{/* Names of cluster-scoped objects end in the namespace, where that is not the usual one. */}}
{{- define "baton.suffix" -}}
{{- if ne .Release.Namespace "${usual_namespace}" }}-{{ .Release.Namespace }}{{ end }}
{{- end }}

{{/* The environment variable of a flag. */}}
{{- define "baton.variable" -}}
{{- $name := . | upper | replace "-" "_" }}
{{- if has $name (list ${theirs}) }}{{ $name }}{{ else }}BATON_{{ $name }}{{ end }}
{{- end }}

{{/* A value as its variable has it. */}}
{{- define "baton.value" -}}
{{- if kindIs "string" . }}{{ . }}{{ else if kindIs "slice" . }}{{ join "," . }}{{ else }}{{ toJson . }}{{ end }}
{{- end }}
