{{/* Names of cluster-scoped objects end in the namespace, where that is not the usual one: two installations do not overwrite each other's. */}}
{{- define "baton.suffix" -}}
{{- if ne .Release.Namespace "baton-system" }}-{{ .Release.Namespace }}{{ end }}
{{- end }}

{{/* Flags as environment variables, so that `kubectl exec … -- /usr/bin/baton doctor` sees what the daemon sees. */}}
{{- define "baton.flags" -}}
{{- range $flag, $value := . }}
- name: {{ include "baton.variable" $flag }}
  value: {{ include "baton.value" $value | quote }}
{{- end }}
{{- end }}

{{/* The environment variable of a flag: that of NVIDIA's device plugin or of Kubernetes, where one means the same. */}}
{{- define "baton.variable" -}}
{{- $theirs := list "CONFIG_FILE" "DEVICE_ID_STRATEGY" "DEVICE_LIST_STRATEGY" "DP_DISABLE_HEALTHCHECKS" "DP_ENABLE_HEALTHCHECKS" "FAIL_ON_INIT_ERROR" "KUBECONFIG" "MIG_STRATEGY" "MPS_ROOT" "NODE_NAME" "NVIDIA_DRIVER_ROOT" "PASS_DEVICE_SPECS" }}
{{- $name := . | upper | replace "-" "_" }}
{{- if has $name $theirs }}{{ $name }}{{ else }}BATON_{{ $name }}{{ end }}
{{- end }}

{{/* A value as its variable has it. */}}
{{- define "baton.value" -}}
{{- if kindIs "string" . }}{{ . }}{{ else if kindIs "slice" . }}{{ join "," . }}{{ else }}{{ toJson . }}{{ end }}
{{- end }}

{{/* The CustomResourceDefinitions that are wanted. */}}
{{- define "baton.kinds" -}}
{{- if ne .Values.crds "none" }}tyjobs.arranger.taichu.io{{ end }}
{{- if eq .Values.crds "all" }} devices.scheduling.koordinator.sh podgroups.scheduling.sigs.k8s.io{{ end }}
{{- end }}

{{/* The link of an alert to its section, where the pages can be read. */}}
{{- define "baton.runbook" -}}
{{- $section := index . 1 }}
{{- with (index . 0).Values.docsUrl }}
        runbook_url: {{ trimSuffix "/" . }}/runbooks.md#{{ $section }}
{{- end }}
{{- end }}
