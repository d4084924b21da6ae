{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{- define "ic.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The image of the publisher, by default beside that of the release. */}}
{{- define "ic.subscriberImage" -}}
{{- $image := .Values.injection.image -}}
{{- $repository := $image.repository | default (printf "%s/kvevent-subscriber" (dir .Values.image.repository)) -}}
{{- if $image.digest -}}
{{ $repository }}@{{ $image.digest }}
{{- else -}}
{{ $repository }}:{{ $image.tag | default .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Labels of an object. Call with (list $ component). */}}
{{- define "ic.labels" -}}
{{ include "ic.selector" (index . 1) }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service | quote }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name | quote }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
helm.sh/chart: {{ (index . 0).Chart.Name }}-{{ (index . 0).Chart.Version }}
{{- end -}}

{{- define "ic.selector" -}}
app.kubernetes.io/name: inference-cache
app.kubernetes.io/component: {{ . }}
{{- end -}}

{{/* What every pod has. Call with (list $ component values). */}}
{{- define "ic.pod" -}}
{{- $ := index . 0 -}}
{{- $component := index . 1 -}}
{{- $values := index . 2 -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
enableServiceLinks: false
{{- with $.Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "ic.selector" $component | nindent 8 }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "ic.selector" $component | nindent 14 }}
{{- end -}}

{{/* Annotations of pods with metrics on port 8080; those of the values win. Call
with (list values others). */}}
{{- define "ic.podAnnotations" -}}
{{- $scraped := dict "prometheus.io/scrape" "true" "prometheus.io/port" "8080" "prometheus.io/path" "/metrics" -}}
{{- merge (dict) (index . 0 | default dict) (index . 1) $scraped | toYaml -}}
{{- end -}}

{{/* How all of our metrics are read. Rates go over at least four scrapes. */}}
{{- define "ic.scrape" -}}
path: /metrics
interval: 30s
scrapeTimeout: 10s
{{- end -}}

{{/* What every container has. */}}
{{- define "ic.container" -}}
image: {{ include "ic.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  runAsNonRoot: true
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* A token volume. Call with (list name audience). */}}
{{- define "ic.token" -}}
- name: {{ index . 0 }}
  projected:
    defaultMode: 288
    sources:
      - serviceAccountToken:
          path: token
          audience: {{ index . 1 }}
          expirationSeconds: 3600
{{- end -}}

{{/* The authority of the servers' pair, without its key. */}}
{{- define "ic.serverCA" -}}
- name: server-ca
  secret:
    secretName: inference-cache-server-tls
    defaultMode: 288
    items: [{key: ca.crt, path: ca.crt}]
{{- end -}}

{{/* The modes that may be "off", which YAML takes for false without quotes. */}}
{{- define "ic.tlsMode" -}}
{{ eq (toString .Values.tls.mode) "false" | ternary "off" .Values.tls.mode }}
{{- end -}}

{{- define "ic.grpcAuth" -}}
{{ eq (toString .Values.server.grpcAuth) "false" | ternary "off" .Values.server.grpcAuth }}
{{- end -}}

{{- define "ic.serverName" -}}
inference-cache-server.{{ .Release.Namespace }}.svc
{{- end -}}

{{- define "ic.serverNames" -}}
{{- range $service := list "inference-cache-server" "inference-cache-server-headless" }}
- {{ $service }}.{{ $.Release.Namespace }}.svc
- {{ $service }}.{{ $.Release.Namespace }}.svc.cluster.local
{{- end }}
{{- end -}}
