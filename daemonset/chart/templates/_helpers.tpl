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

{{/* Recommended labels of every object; its name stands beside them where it has one. */}}
{{- define "baton.labels" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: baton
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{/* The image, from its name or its parts. */}}
{{- define "baton.image" -}}
{{- $image := .Values.image }}
{{- if kindIs "string" $image }}{{ $image | toJson }}
{{- else }}
{{- $name := printf "%s%s" (ternary (printf "%s/" $image.registry) "" (ne ($image.registry | default "") "")) ($image.repository | default "baton") }}
{{- $tag := ternary (printf "@%s" $image.digest) (printf ":%s" ($image.tag | default .Chart.AppVersion)) (ne ($image.digest | default "") "") }}
{{- printf "%s%s" $name $tag | toJson }}
{{- with $image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* What a daemon's values say of its pods beside their containers: (list $ .Values.scheduler). */}}
{{- define "baton.pod" -}}
{{- $root := index . 0 }}
{{- $daemon := index . 1 }}
{{- range $field, $value := dict "imagePullSecrets" $root.Values.imagePullSecrets "nodeSelector" $daemon.nodeSelector "tolerations" $daemon.tolerations "topologySpreadConstraints" $daemon.topologySpreadConstraints }}
{{- with $value }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Labels and annotations that a daemon's values add to its pods. */}}
{{- define "baton.podMetadata" -}}
{{- with .podLabels }}
{{- toYaml . | nindent 2 }}
{{- end }}
{{- with .podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Two replicas on two nodes, where that can be; `affinity` of the values in its place. */}}
{{- define "baton.affinity" -}}
{{- $name := index . 0 }}
{{- with (index . 1).affinity }}
{{- toYaml . }}
{{- else -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
  - weight: 100
    podAffinityTerm:
      topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels:
          app.kubernetes.io/name: {{ $name }}
{{- end }}
{{- end }}
