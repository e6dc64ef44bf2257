{{- define "penstock.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/*
The prefix of all names. Short enough that with the longest suffix, and what a StatefulSet adds, it is still a valid one.
*/}}
{{- define "penstock.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "penstock.chart" -}}
{{- printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "penstock.labels" -}}
helm.sh/chart: {{ include "penstock.chart" . }}
{{ include "penstock.selectorLabels" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | trunc 63 | quote }}
app.kubernetes.io/part-of: penstock
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.extraLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "penstock.selectorLabels" -}}
app.kubernetes.io/name: {{ include "penstock.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "penstock.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "penstock.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "penstock.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
{{- end }}

{{- define "penstock.tokenSecret" -}}
{{- .Values.token.existingSecret | default (printf "%s-token" (include "penstock.fullname" .)) }}
{{- end }}

{{- define "penstock.tlsSecret" -}}
{{- .Values.tls.existingSecret | default (printf "%s-tls" (include "penstock.fullname" .)) }}
{{- end }}

{{/*
A checksum of the secrets in the values, so that pods restart when one changes. A secret that the
chart generated never changes, and a Secret outside the chart cannot be seen from here.
*/}}
{{- define "penstock.secretsChecksum" -}}
{{- list .Values.token .Values.tls .Values.redis.password | toJson | sha256sum }}
{{- end }}

{{- define "penstock.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "penstock.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop:
    - ALL
{{- end }}

{{/*
What pods listen on: the first for all, those of `penstock.addresses` for clients.
*/}}
{{- define "penstock.address" -}}
{{- ternary "[::]" "0.0.0.0" (eq (first (concat .Values.ipFamilies (list "IPv4"))) "IPv6") }}
{{- end }}

{{- define "penstock.addresses" -}}
{{- range (default (list "IPv4") .Values.ipFamilies) }}
- {{ ternary "[::]" "0.0.0.0" (eq . "IPv6") | quote }}
{{- end }}
{{- end }}

{{/*
The same of Services. Takes a dict of `root` and `both`: whether clients come by it.
*/}}
{{- define "penstock.ipFamilies" -}}
{{- $families := .root.Values.ipFamilies }}
{{- if $families }}
{{- $families = ternary $families (list (first $families)) .both }}
ipFamilyPolicy: {{ ternary "RequireDualStack" "SingleStack" (eq (len $families) 2) }}
ipFamilies:
  {{- toYaml $families | nindent 2 }}
{{- end }}
{{- end }}

{{/*
Storage size in the claim template of the store: the size in the existing StatefulSet, because Kubernetes allows no change of it.
*/}}
{{- define "penstock.templateSize" -}}
{{- $found := lookup "apps/v1" "StatefulSet" .Release.Namespace (printf "%s-store" (include "penstock.fullname" .)) }}
{{- $claims := dig "spec" "volumeClaimTemplates" list $found }}
{{- if $claims }}
{{- dig "spec" "resources" "requests" "storage" .Values.store.persistence.size (first $claims) }}
{{- else }}
{{- .Values.store.persistence.size }}
{{- end }}
{{- end }}

{{/*
What operators say about where the pods of a component may run, and before whom. Takes its values.
*/}}
{{- define "penstock.placement" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
The operator's settings as environment variables. Takes a dict of `settings` and `without`, the sections left out; or, in its place,
`only`, the sections that are taken besides the settings without one.
*/}}
{{- define "penstock.settings" -}}
{{- $without := .without }}
{{- $only := .only | default list }}
{{- range $name, $value := .settings }}
{{- $section := splitList "." $name | first }}
{{- if ternary (has $section (append $only $name)) (not (has $section $without)) (not (empty $only)) }}
- name: PENSTOCK_{{ $name | replace "." "__" | upper }}
  {{- if kindIs "slice" $value }}
  value: {{ join "," $value | quote }}
  {{- else if kindIs "float64" $value }}
  value: {{ ternary ($value | int64 | toString) ($value | toString) (eq (floor $value) $value) | quote }}
  {{- else }}
  value: {{ $value | quote }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The name of the setting that holds the URL of Redis.
*/}}
{{- define "penstock.redisSetting" -}}
PENSTOCK_NOTIFY__REDIS_URL
{{- end }}

{{- define "penstock.redis" -}}
{{- $setting := include "penstock.redisSetting" . | trim }}
{{- if $setting }}
{{- if .Values.redis.existingSecret }}
- name: {{ $setting }}
  valueFrom:
    secretKeyRef:
      name: {{ .Values.redis.existingSecret }}
      key: url
{{- else if .Values.redis.externalUrl }}
- name: {{ $setting }}
  value: {{ .Values.redis.externalUrl | quote }}
{{- else if .Values.redis.enabled }}
- name: {{ $setting }}
  valueFrom:
    secretKeyRef:
      name: {{ include "penstock.fullname" . }}-redis
      key: url
{{- end }}
{{- end }}
{{- end }}

{{/*
Whether each listener is on, by scheme. Plain MQTT, unless it is said, is on only where there is no TLS.
*/}}
{{- define "penstock.enabledListeners" -}}
{{- $said := .Values.gateway.listeners }}
{{- $plain := ternary (not (or $said.mqtts $said.wss)) $said.mqtt (kindIs "invalid" $said.mqtt) }}
{{- merge (dict "mqtt" $plain) (omit $said "mqtt") | toYaml }}
{{- end }}

{{/*
The ports that gateways listen on, by scheme; and those of the Service.
*/}}
{{- define "penstock.listeners" -}}
{{- $ports := dict "mqtt" 1883 "mqtts" 8883 "ws" 8080 "wss" 8443 }}
{{- range $scheme, $enabled := include "penstock.enabledListeners" . | fromYaml }}
{{- if $enabled }}
{{ $scheme }}: {{ get $ports $scheme }}
{{- end }}
{{- end }}
{{- end }}

{{- define "penstock.servicePorts" -}}
{{- $service := .Values.gateway.service }}
{{- $ports := dict "mqtt" $service.port "mqtts" $service.mqttsPort "ws" $service.wsPort "wss" $service.wssPort }}
{{- range $scheme, $enabled := include "penstock.enabledListeners" . | fromYaml }}
{{- if $enabled }}
{{ $scheme }}: {{ get $ports $scheme }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The listeners of namespaces: what a port is called, by its number.
*/}}
{{- define "penstock.namespacePorts" -}}
{{- range .Values.gateway.namespaces }}
{{ .port | int }}: {{ printf "%s-%d" .scheme (.port | int) }}
{{- end }}
{{- end }}

{{/*
Whether the store admits a role besides gateways (`clients` or `operators`); empty: no. Takes a dict of `root` and `role`.
*/}}
{{- define "penstock.admits" -}}
{{- if or .root.Values.console.enabled (get .root.Values.token .role).enabled }}yes{{ end }}
{{- end }}

{{/*
The files by which users are judged: variables that name them, where they are mounted, and their volumes.
*/}}
{{- define "penstock.authEnv" -}}
{{- range $setting, $key := .Values.gateway.auth.files }}
{{- if $key }}
- name: PENSTOCK_AUTH__{{ $setting | upper }}
  value: /etc/penstock/auth/{{ $key }}
{{- end }}
{{- end }}
{{- if .Values.gateway.auth.permissionsConfigMap }}
- name: PENSTOCK_AUTH__PERMISSIONS_FILE
  value: /etc/penstock/permissions/permissions.toml
{{- end }}
{{- end }}

{{- define "penstock.authMounts" -}}
{{- if compact (values .Values.gateway.auth.files) }}
- name: auth
  mountPath: /etc/penstock/auth
  readOnly: true
{{- end }}
{{- if .Values.gateway.auth.permissionsConfigMap }}
- name: permissions
  mountPath: /etc/penstock/permissions
  readOnly: true
{{- end }}
{{- end }}

{{- define "penstock.authVolumes" -}}
{{- with .Values.gateway.auth }}
{{- if compact (values .files) }}
- name: auth
  secret:
    secretName: {{ .existingSecret }}
    defaultMode: 0440
    items:
      {{- range $key := values .files | compact | uniq | sortAlpha }}
      - key: {{ $key }}
        path: {{ $key }}
      {{- end }}
{{- end }}
{{- if .permissionsConfigMap }}
- name: permissions
  configMap:
    name: {{ .permissionsConfigMap }}
    items:
      - key: permissions.toml
        path: permissions.toml
{{- end }}
{{- end }}
{{- end }}

{{/*
The names by which browsers may call the console.
*/}}
{{- define "penstock.consoleHosts" -}}
{{- $name := printf "%s-console" (include "penstock.fullname" .) }}
{{- $within := printf "%s.%s" $name .Release.Namespace }}
{{- $hosts := list $name $within (printf "%s.svc" $within) (printf "%s.svc.cluster.local" $within) }}
{{- if .Values.console.ingress.enabled }}
{{- $hosts = concat $hosts .Values.console.ingress.hosts }}
{{- end }}
{{- concat $hosts .Values.console.hosts | uniq | join "," }}
{{- end }}

{{/*
Whether clients must authenticate; empty: no.
*/}}
{{- define "penstock.asksClients" -}}
{{- $settings := .Values.settings }}
{{- $files := .Values.gateway.auth.files }}
{{- range $file := list "password_file" "jwt_keys_file" "jwt_secret_file" }}
{{- if get $files $file }}yes{{ end }}
{{- end }}
{{- range $setting := list "auth.jwt_keys_url" "auth.http_connect_url" "auth.client_certificates" }}
{{- if get $settings $setting }}yes{{ end }}
{{- end }}
{{- end }}

{{/*
Checks that a schema cannot express, or not with a clear message.
*/}}
{{- define "penstock.validate" -}}
{{- if not (or .Values.gateway.allowAnonymous (include "penstock.asksClients" .)) }}
{{- fail "gateway.allowAnonymous: false, but no authentication is set up (gateway.auth.files, or settings such as auth.http_connect_url); set it to true if every client that reaches the gateways may publish and subscribe to everything" }}
{{- end }}
{{- $listeners := include "penstock.listeners" . | fromYaml }}
{{- with .Values.gateway }}
{{- if not $listeners }}
{{- fail "gateway.listeners: all are off, so no client could connect; turn one on" }}
{{- end }}
{{- $ports := values $listeners | join " " | splitList " " }}
{{- $encrypts := false }}
{{- range .namespaces }}
{{- $encrypts = or $encrypts (has .scheme (list "mqtts" "wss")) }}
{{- if has (.port | int | toString) (concat $ports (list "9464")) }}
{{- fail (printf "gateway.namespaces: port %d is that of another listener; choose another" (.port | int)) }}
{{- end }}
{{- $ports = append $ports (.port | int | toString) }}
{{- end }}
{{- if and $encrypts (not .tls.existingSecret) }}
{{- fail "gateway.namespaces: mqtts and wss need a certificate; name a Secret with gateway.tls.existingSecret" }}
{{- end }}
{{- if and (or .listeners.mqtts .listeners.wss (ne .tls.clientCertificates "none")) (not .tls.existingSecret) }}
{{- fail "gateway.listeners: mqtts, wss and certificates of clients need a certificate; name a Secret with gateway.tls.existingSecret" }}
{{- end }}
{{- if and .tls.crlConfigMap (eq .tls.clientCertificates "none") }}
{{- fail "gateway.tls.crlConfigMap: applies to certificates of clients, which are off; set gateway.tls.clientCertificates" }}
{{- end }}
{{- if and (compact (values .auth.files)) (not .auth.existingSecret) }}
{{- fail "gateway.auth.files: name the Secret that has them with gateway.auth.existingSecret" }}
{{- end }}
{{- if and .auth.permissionsConfigMap .auth.files.permissions_file }}
{{- fail "gateway.auth: the rules are in files.permissions_file and in permissionsConfigMap; keep one" }}
{{- end }}
{{- end }}
{{- $of := .Values.token.namespaces }}
{{- if and $of.enabled (not .Values.token.existingSecret) (not $of.tokens) }}
{{- fail "token.namespaces.enabled: true, but there are no tokens; set token.namespaces.tokens or name a Secret with token.existingSecret" }}
{{- end }}
{{- $tls := .Values.tls }}
{{- if and $tls.enabled (not $tls.existingSecret) (not (and $tls.certificate $tls.key $tls.ca)) }}
{{- fail "tls.enabled: true, but there is no certificate; name a Secret with tls.existingSecret or set all of tls.certificate, tls.key and tls.ca" }}
{{- end }}
{{- if and $tls.gateways.existingSecret (not (and $tls.enabled $tls.gateways.name)) }}
{{- fail "tls.gateways: certificates of gateways need tls.enabled, and tls.gateways.name, the name in them" }}
{{- end }}
{{- $ingress := .Values.gateway.ingress }}
{{- if and $ingress.enabled (not (or $listeners.ws $listeners.wss)) }}
{{- fail "gateway.ingress: leads to WebSocket, and neither gateway.listeners.ws nor gateway.listeners.wss is on; turn one on" }}
{{- end }}
{{- if and $ingress.enabled (not $ingress.hosts) }}
{{- fail "gateway.ingress.hosts: is empty; name the hosts that clients connect to" }}
{{- end }}
{{- if and .Values.gateway.service.externalTrafficPolicy (eq .Values.gateway.service.type "ClusterIP") }}
{{- fail "gateway.service.externalTrafficPolicy: is for a Service of type NodePort or LoadBalancer, not ClusterIP" }}
{{- end }}
{{- if and (or .Values.gateway.service.loadBalancerSourceRanges .Values.gateway.service.loadBalancerClass) (ne .Values.gateway.service.type "LoadBalancer") }}
{{- fail "gateway.service: loadBalancerSourceRanges and loadBalancerClass are for a Service of type LoadBalancer" }}
{{- end }}
{{- with .Values.console }}
{{- if and .enabled (not (or .allowOpen (include "penstock.asksClients" $))) }}
{{- fail "console: enabled, but no user needs a password (gateway.auth.files, or settings such as auth.http_connect_url); set one up, or console.allowOpen to true if anyone who reaches the console may read, publish and disconnect clients" }}
{{- end }}
{{- if and .enabled (eq (int .port) 9464) }}
{{- fail "console.port: 9464 is the admin port's; choose another" }}
{{- end }}
{{- if and .ingress.enabled (not .enabled) }}
{{- fail "console.ingress: there is no console; set console.enabled" }}
{{- end }}
{{- if and .ingress.enabled (not .ingress.hosts) }}
{{- fail "console.ingress.hosts: is empty; name the hosts that browsers use" }}
{{- end }}
{{- if and .ingress.enabled $.Values.networkPolicy.enabled (not $.Values.networkPolicy.consoleClients) }}
{{- fail "console.ingress: the network policy lets no pod connect to the console; name those of your Ingress controller with networkPolicy.consoleClients" }}
{{- end }}
{{- end }}
{{- $redis := .Values.redis }}
{{- if gt (len (compact (list (ternary "here" "" $redis.enabled) $redis.externalUrl $redis.existingSecret))) 1 }}
{{- fail "redis: more than one of redis.enabled, redis.externalUrl and redis.existingSecret is set; keep one" }}
{{- end }}
{{- with .Values.gateway.autoscaling }}
{{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) }}
{{- fail "gateway.autoscaling: minReplicas is larger than maxReplicas; lower it" }}
{{- end }}
{{- if and .enabled (not (compact (values .targets))) }}
{{- fail "gateway.autoscaling.targets: all are null; set one or turn autoscaling off" }}
{{- end }}
{{- end }}
{{- end }}
