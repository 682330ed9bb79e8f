{{- define "gpufleet.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "gpufleet.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "gpufleet.name" . -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels of a component: (dict "root" $ "component" NAME) */}}
{{- define "gpufleet.selector" -}}
app.kubernetes.io/name: {{ include "gpufleet.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "gpufleet.labels" -}}
{{ include "gpufleet.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Name, namespace and labels of an object: (dict "root" $ "component" NAME) */}}
{{- define "gpufleet.metadata" -}}
name: {{ include "gpufleet.fullname" .root }}-{{ .component }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "gpufleet.labels" . | nindent 2 }}
{{- end -}}

{{/* Image reference: (dict "root" $ "image" VALUES) */}}
{{- define "gpufleet.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Root URL of a hub or relay of this release: (dict "root" $ "component" NAME "values" VALUES) */}}
{{- define "gpufleet.serviceUrl" -}}
{{ ternary "http" "https" .values.insecure }}://{{ include "gpufleet.fullname" .root }}-{{ .component }}.{{ .root.Release.Namespace }}.svc:8470
{{- end -}}

{{/* Receiver of the batches of agents and collector, as JSON: url, token, ca, insecure; component if it is in this release */}}
{{- define "gpufleet.receiver" -}}
{{- if .Values.relay.enabled -}}
{{- $url := include "gpufleet.serviceUrl" (dict "root" . "component" "relay" "values" .Values.relay) -}}
{{- dict "component" "relay" "url" $url "token" .Values.relay.clients.token "ca" .Values.relay.clients.ca "insecure" .Values.relay.insecure | toJson -}}
{{- else -}}
{{- include "gpufleet.upstream" . -}}
{{- end -}}
{{- end -}}

{{/* Receiver of the batches of a relay, and of agents and collector without one */}}
{{- define "gpufleet.upstream" -}}
{{- if .Values.hub.enabled -}}
{{- $url := include "gpufleet.serviceUrl" (dict "root" . "component" "hub" "values" .Values.hub) -}}
{{- dict "component" "hub" "url" $url "token" .Values.hub.clients.token "ca" .Values.hub.clients.ca "insecure" .Values.hub.insecure | toJson -}}
{{- else -}}
{{- .Values.sendTo | toJson -}}
{{- end -}}
{{- end -}}

{{/* Variables of a connection to a hub: (dict "prefix" PREFIX "urlKey" KEY "receiver" RECEIVER) */}}
{{- define "gpufleet.receiverEnv" -}}
{{- with .receiver }}
{{- if .url }}
- {name: {{ $.prefix }}__{{ $.urlKey }}, value: {{ .url | quote }}}
{{- if .token.secretName }}
- {name: {{ $.prefix }}__TOKEN_FILE, value: /etc/gpufleet/hub/token}
{{- end }}
{{- if or .ca.configMapName .ca.secretName }}
- {name: {{ $.prefix }}__CA, value: /etc/gpufleet/hub-ca/ca.crt}
{{- end }}
{{- if .insecure }}
- {name: {{ $.prefix }}__INSECURE, value: "true"}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "gpufleet.receiverMounts" -}}
{{- if and .url .token.secretName }}
- {name: hub-token, mountPath: /etc/gpufleet/hub, readOnly: true}
{{- end }}
{{- if and .url (or .ca.configMapName .ca.secretName) }}
- {name: hub-ca, mountPath: /etc/gpufleet/hub-ca, readOnly: true}
{{- end }}
{{- end -}}

{{- define "gpufleet.receiverVolumes" -}}
{{- if and .url .token.secretName }}
- name: hub-token
  secret: {secretName: {{ .token.secretName }}, defaultMode: 0440, items: [{key: {{ .token.key }}, path: token}]}
{{- end }}
{{- if and .url .ca.configMapName }}
- name: hub-ca
  configMap: {name: {{ .ca.configMapName }}, items: [{key: {{ .ca.key }}, path: ca.crt}]}
{{- else if and .url .ca.secretName }}
- name: hub-ca
  secret: {secretName: {{ .ca.secretName }}, defaultMode: 0440, items: [{key: {{ .ca.key }}, path: ca.crt}]}
{{- end }}
{{- end -}}

{{/* Variables of the endpoints of agents and collector: (dict "root" $ "prefix" PREFIX "port" PORT) */}}
{{- define "gpufleet.listenEnv" -}}
{{- with .root.Values.metrics }}
- {name: {{ $.prefix }}_LISTEN, value: "{{ ternary "0.0.0.0" "127.0.0.1" .enabled }}:{{ $.port }}"}
{{- if .enabled }}
{{- if .insecure }}
- {name: {{ $.prefix }}_INSECURE_LISTEN, value: "true"}
{{- end }}
{{- if .token.secretName }}
- {name: {{ $.prefix }}_TOKEN_FILE, value: /etc/gpufleet/listen/token}
{{- end }}
{{- if .tls.secretName }}
- {name: {{ $.prefix }}_TLS__CERTIFICATE, value: /etc/gpufleet/tls/tls.crt}
- {name: {{ $.prefix }}_TLS__KEY, value: /etc/gpufleet/tls/tls.key}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "gpufleet.listenMounts" -}}
{{- with .Values.metrics }}
{{- if and .enabled .token.secretName }}
- {name: listen-token, mountPath: /etc/gpufleet/listen, readOnly: true}
{{- end }}
{{- if and .enabled .tls.secretName }}
- {name: tls, mountPath: /etc/gpufleet/tls, readOnly: true}
{{- end }}
{{- end }}
{{- end -}}

{{- define "gpufleet.listenVolumes" -}}
{{- with .Values.metrics }}
{{- if and .enabled .token.secretName }}
- name: listen-token
  secret: {secretName: {{ .token.secretName }}, defaultMode: 0440, items: [{key: {{ .token.key }}, path: token}]}
{{- end }}
{{- if and .enabled .tls.secretName }}
- name: tls
  secret: {secretName: {{ .tls.secretName }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- end -}}

{{/* Port and probes of agents and collector: (dict "root" $ "port" PORT). On loopback, a command queries the endpoint. */}}
{{- define "gpufleet.probes" -}}
{{- $metrics := .root.Values.metrics -}}
{{- if $metrics.enabled }}
ports:
  - {name: metrics, containerPort: {{ .port }}, protocol: TCP}
{{- end }}
{{- range $probe := list (dict "name" "livenessProbe" "path" "/healthz" "period" 60 "delay" 20) (dict "name" "readinessProbe" "path" "/readyz" "period" 30 "delay" 5) }}
{{ $probe.name }}:
  initialDelaySeconds: {{ $probe.delay }}
  periodSeconds: {{ $probe.period }}
  timeoutSeconds: 5
  failureThreshold: 3
  {{- if $metrics.enabled }}
  httpGet: {path: {{ $probe.path }}, port: metrics, scheme: {{ ternary "HTTPS" "HTTP" (ne $metrics.tls.secretName "") }}}
  {{- else }}
  exec:
    command:
      - python
      - -ESc
      - |
        import socket
        with socket.create_connection(("127.0.0.1", {{ $.port }}), 4) as peer:
            peer.sendall(b"GET {{ $probe.path }} HTTP/1.0\r\n\r\n")
            raise SystemExit(b" 200 " not in peer.recv(64))
  {{- end }}
{{- end }}
{{- end -}}

{{/* Proxy of a component that sends batches. Names in the cluster and the API server are exempt. */}}
{{- define "gpufleet.proxyEnv" -}}
{{- with .Values.proxy }}
{{- if .https }}
- {name: HTTPS_PROXY, value: {{ .https | quote }}}
{{- end }}
{{- if .http }}
- {name: HTTP_PROXY, value: {{ .http | quote }}}
{{- end }}
{{- if or .https .http }}
- name: NO_PROXY
  value: {{ printf "localhost,127.0.0.1,$(KUBERNETES_SERVICE_HOST),.svc,.cluster.local%s" (ternary (printf ",%s" .exempt) "" (ne .exempt "")) | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Security context of containers without privileges */}}
{{- define "gpufleet.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Security context of pods without root: (dict "user" UID) */}}
{{- define "gpufleet.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .user }}
runAsGroup: {{ .user }}
fsGroup: {{ .user }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Fields of every pod. Without enableServiceLinks, variables of a Service such as GPUFLEET_HUB_PORT would be read as
configuration. */}}
{{- define "gpufleet.podFields" -}}
enableServiceLinks: false
automountServiceAccountToken: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Metadata of pods: (dict "root" $ "component" NAME "values" VALUES "config" TEXT) */}}
{{- define "gpufleet.podMetadata" -}}
labels:
  {{- include "gpufleet.selector" . | nindent 2 }}
  {{- with .values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- if or .values.podAnnotations .config }}
annotations:
  {{- if .config }}
  checksum/config: {{ sha256sum .config }}
  {{- end }}
  {{- with .values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Rules for the owner chains of pods: (dict "virtualMachines" BOOL "others" LIST "value" NAME of that list) */}}
{{- define "gpufleet.ownerRules" -}}
# Owners of pods, by reference: Deployment of a ReplicaSet, and so on. Only their metadata is requested.
- apiGroups: [apps]
  resources: [daemonsets, deployments, replicasets, statefulsets]
  verbs: [get]
# Owners of pods: CronJob of a Job.
- apiGroups: [batch]
  resources: [cronjobs, jobs]
  verbs: [get]
{{- if .virtualMachines }}
# Owners of launcher pods: VirtualMachine of a VirtualMachineInstance.
- apiGroups: [kubevirt.io]
  resources: [virtualmachineinstances, virtualmachines]
  verbs: [get]
{{- end }}
{{- range .others }}
# Owners of pods, by {{ $.value }}.
- apiGroups: [{{ .group }}]
  resources: [{{ .resources | join ", " }}]
  verbs: [get]
{{- end }}
{{- end -}}

{{/* Volume with the credentials of the service account: as the automatic mount, but readable by the group only */}}
{{- define "gpufleet.apiToken" -}}
- name: api-token
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3607}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end -}}
