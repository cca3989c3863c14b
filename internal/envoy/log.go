// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filelogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"aether.io/aether/internal/model"
)

// LogField is one key of the L4 access log.
type LogField struct {
	Key string
	// Type is the JSON type of the value. It is null where there is none.
	Type string
	// Doc says what the value is.
	Doc string
}

// logField is a field with the format that Envoy fills it by.
type logField struct {
	LogField
	format string
}

// logFields is the schema of the L4 access log: one JSON object per line and
// captured connection, written at the connection's end. Three keys are constants
// of the pod and are filled in by connectionLog.
var logFields = []logField{
	{LogField{"time", "string", "when the connection was accepted, RFC 3339 in UTC with milliseconds"}, "%START_TIME(%Y-%m-%dT%H:%M:%S.%3fZ)%"},
	{LogField{"source", "string", "SPIFFE ID of the pod"}, ""},
	{LogField{"pod_namespace", "string", "namespace of the pod"}, ""},
	{LogField{"pod_name", "string", "name of the pod"}, ""},
	{LogField{"client", "string", "address and port the pod dialled from"}, "%DOWNSTREAM_REMOTE_ADDRESS%"},
	{LogField{"dialled", "string", "address and port the pod dialled"}, "%DOWNSTREAM_LOCAL_ADDRESS%"},
	{LogField{"chain", "string", "what the dialled address was taken for: cap_svc, cap_passthrough_svc, cap_passthrough or cap_closed"}, "%FILTER_CHAIN_NAME%"},
	{LogField{"service_namespace", "string", "namespace of the Service the dialled address belongs to"}, "%CLUSTER_METADATA(aether:namespace)%"},
	{LogField{"service_name", "string", "name of that Service"}, "%CLUSTER_METADATA(aether:service)%"},
	{LogField{"service_port", "string", "name of the Service's port, or its number when it has no name"}, "%CLUSTER_METADATA(aether:port)%"},
	{LogField{"cluster", "string", "Envoy cluster that the connection went to"}, "%UPSTREAM_CLUSTER_RAW%"},
	{LogField{"endpoint", "string", "address of the last endpoint that was tried"}, "%UPSTREAM_HOST%"},
	{LogField{"upstream_source", "string", "address and port that Envoy dialled the endpoint from"}, "%UPSTREAM_LOCAL_ADDRESS%"},
	{LogField{"attempts", "number", "endpoints tried"}, "%UPSTREAM_REQUEST_ATTEMPT_COUNT%"},
	{LogField{"attempted", "string", "their addresses in order, separated by commas"}, "%UPSTREAM_HOSTS_ATTEMPTED%"},
	{LogField{"bytes_sent", "number", "bytes the pod sent"}, "%BYTES_RECEIVED%"},
	{LogField{"bytes_received", "number", "bytes the pod received"}, "%BYTES_SENT%"},
	{LogField{"duration_ms", "number", "milliseconds from accept to end"}, "%DURATION%"},
	{LogField{"wait_us", "number", "microseconds from accept until the endpoint was dialled: the wait for the answer to a new name, and for endpoints tried in vain"}, "%COMMON_DURATION(DS_CX_BEG:US_CX_BEG:us)%"},
	{LogField{"outcome", "string", "ok, refused, unanswered, connect-failed, timeout or server-reset; a connection the client reset is ok here and told by client_close"}, logOutcome},
	{LogField{"reason", "string", "why it was refused"}, "%UPSTREAM_METADATA(aether:reason)%"},
	{LogField{"flags", "string", "Envoy's response flags, - for none"}, "%RESPONSE_FLAGS%"},
	{LogField{"client_close", "string", "how the client's side ended: Normal, RemoteReset (the client's reset) or LocalReset (Envoy's)"}, "%DOWNSTREAM_DETECTED_CLOSE_TYPE%"},
	{LogField{"close_reason", "string", "why Envoy itself closed the client's side"}, "%DOWNSTREAM_LOCAL_CLOSE_REASON%"},
	{LogField{"failure", "string", "why the last connect failed"}, "%UPSTREAM_TRANSPORT_FAILURE_REASON%"},
}

// logOutcome is the outcome as the log can tell it: the refuser's metadata, else
// by Envoy's response flags, which CEL knows as an integer (2 no endpoint, 16
// upstream reset, 16777216 no cluster; a lookup that finds nothing gives way to
// the next operator), else a connect failed. Lookups take a third of the memory
// of the same as conditions.
const logOutcome = `%COALESCE({"operators":[{"command":"UPSTREAM_METADATA","param":"aether:outcome"},` +
	`{"command":"CEL","param":"{0:'ok',2:'unanswered',16:'server-reset',16777216:'unanswered'}[response.flags]"},` +
	`{"command":"CEL","param":"upstream.transport_failure_reason == '' ? 'timeout' : 'connect-failed'"}]})%`

// LogSchema returns the keys of the L4 access log with what they mean.
func LogSchema() []LogField {
	out := make([]LogField, 0, len(logFields))
	for _, f := range logFields {
		out = append(out, f.LogField)
	}
	return out
}

// RuntimeSuccessPercent is the runtime key of the share, in percent, of
// connections without a response flag that the log holds. The bootstrap sets it
// and Envoy's admin interface can change it while it runs.
const RuntimeSuccessPercent = "aether.access_log.success_percent"

// connectionLog writes the L4 access log. It belongs to the listener, not to its
// chains: one logger serves them all, and connections that reach no chain are
// logged too. What has a response flag is written up to Settings.AccessLogFaultRate
// a second, and beyond it by the share: every refusal and failure, save a refused connection that the client reset first and one beyond
// the pod's limit, which are counted like all but logged by the share.
func connectionLog(w model.Workload, s Settings) *accesslogv3.AccessLog {
	constants := map[string]string{
		"source":        literal(SPIFFEID(s.TrustDomain, w.Name.Namespace, w.ServiceAccount)),
		"pod_namespace": literal(w.Name.Namespace),
		"pod_name":      literal(w.Name.Name),
	}
	formats := make(map[string]string, len(logFields))
	for _, f := range logFields {
		formats[f.Key] = f.format
		if c, ok := constants[f.Key]; ok {
			formats[f.Key] = c
		}
	}
	return &accesslogv3.AccessLog{
		Name:   "envoy.access_loggers.file",
		Filter: flaggedOrSampled(s),
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: pack(&filelogv3.FileAccessLog{
			Path: text(s.AccessLogPath),
			AccessLogFormat: &filelogv3.FileAccessLog_LogFormat{LogFormat: &corev3.SubstitutionFormatString{
				Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: stringFields(formats)},
			}},
		})},
	}
}

func flaggedOrSampled(s Settings) *accesslogv3.AccessLogFilter {
	sampled := &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_RuntimeFilter{
		RuntimeFilter: &accesslogv3.RuntimeFilter{
			RuntimeKey:               RuntimeSuccessPercent,
			PercentSampled:           &typev3.FractionalPercent{},
			UseIndependentRandomness: true,
		},
	}}
	return anyOf(allOf(flagged(), rated(logFaultRate(s))), sampled)
}
