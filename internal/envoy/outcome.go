// SPDX-License-Identifier: Apache-2.0

package envoy

import matcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"

// Outcome says how a captured connection ended. The set is closed.
type Outcome string

// The outcomes.
const (
	// OK: it reached an endpoint and neither side reset it.
	OK Outcome = "ok"
	// Refused: the node proxy refused it, by reason or because the pod held too
	// many connections.
	Refused Outcome = "refused"
	// Unanswered: no answer to its name came in time, or one without endpoints.
	Unanswered Outcome = "unanswered"
	// ConnectFailed: every endpoint it tried turned it away.
	ConnectFailed Outcome = "connect-failed"
	// Timeout: the endpoints it tried did not answer within the connect timeout.
	Timeout Outcome = "timeout"
	// ServerReset: the server reset it.
	ServerReset Outcome = "server-reset"
	// ClientReset: the client reset it.
	ClientReset Outcome = "client-reset"
)

// Outcomes returns the closed set, in the order of the table above.
func Outcomes() []Outcome {
	return []Outcome{OK, Refused, Unanswered, ConnectFailed, Timeout, ServerReset, ClientReset}
}

// ending is what Envoy knows of a connection's end, as one text: response flags,
// the outcome that the endpoint's metadata carries, how the client's side was
// closed, why Envoy closed it, why the last connect failed. What there is none
// of is empty, except the flags, which are "-" then.
const ending = "%RESPONSE_FLAGS%;%UPSTREAM_METADATA(aether:outcome)%;%DOWNSTREAM_DETECTED_CLOSE_TYPE%;" +
	"%DOWNSTREAM_LOCAL_CLOSE_REASON%;%UPSTREAM_TRANSPORT_FAILURE_REASON%"

// outcomeRule gives an outcome to the endings in which all its texts occur.
type outcomeRule struct {
	all     []*matcherv3.StringMatcher
	outcome Outcome
}

// outcomeRules are tried in order; an ending that meets none is OK. A connect
// that timed out leaves no failure text, so its ending ends with the separator.
func outcomeRules() []outcomeRule {
	when := func(o Outcome, all ...*matcherv3.StringMatcher) outcomeRule {
		return outcomeRule{all: all, outcome: o}
	}
	return []outcomeRule{
		when(Refused, contains(";"+string(Refused)+";")),
		when(Refused, contains(";over_connection_limit;")),
		when(Timeout, prefix("UF"), suffix(";")),
		when(ConnectFailed, prefix("UF")),
		when(Unanswered, prefix("UH")),
		when(Unanswered, prefix("NC")),
		when(ServerReset, prefix("UR")),
		when(ClientReset, contains(";RemoteReset;")),
	}
}

func contains(s string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Contains{Contains: s}}
}

func prefix(s string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: s}}
}

func suffix(s string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: s}}
}
