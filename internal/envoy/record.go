// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	dataaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"

	"aether.io/aether/internal/model"
)

// Record is what Envoy tells the agent of one captured connection: while it is
// open, at intervals, and when it has ended.
type Record struct {
	// Open is true while the connection is open; it may have ended since.
	Open bool
	// Start is when it was accepted. With Client and Dialled it identifies the
	// connection.
	Start time.Time
	// Duration is from Start to its end, or 0 while it is open.
	Duration time.Duration
	// Client and Dialled are the two ends as the pod sees them.
	Client, Dialled netip.AddrPort
	// Pod is the pod that dialled. It is empty while the connection is open, and
	// then known by Client's address.
	Pod model.Name
	// Cluster is the Envoy cluster it went to, empty for none.
	Cluster string
	// Endpoint is the last endpoint that was tried. It is not valid when there
	// was none, or none but the refuser.
	Endpoint netip.AddrPort
	// Attempts is how many endpoints were tried.
	Attempts uint32
	// BytesSent and BytesReceived are the pod's, up to now.
	BytesSent, BytesReceived uint64
	// Outcome is empty while the connection is open.
	Outcome Outcome
	// Reason says why it was refused.
	Reason string
	// Failure says why the last connect failed, in Envoy's words.
	Failure string
	// Wait is from Start until the endpoint was dialled; negative when it is not
	// known or none was.
	Wait time.Duration
}

// recordFormat is what an end record says beside Envoy's own fields: listener,
// reason of a refusal, how the client's side ended, and the wait in microseconds.
const recordFormat = "%LISTENER_NAME%;%UPSTREAM_METADATA(aether:reason)%;%DOWNSTREAM_DETECTED_CLOSE_TYPE%;" +
	"%COMMON_DURATION(DS_CX_BEG:US_CX_BEG:us)%"

// ReadRecord reads what Envoy sends. It is an error when the connection's two
// ends or its start are missing, for then nothing can be said of it.
func ReadRecord(e *dataaccesslogv3.TCPAccessLogEntry) (Record, error) {
	c := e.GetCommonProperties()
	r := Record{
		Open:          c.GetAccessLogType() == dataaccesslogv3.AccessLogType_TcpPeriodic,
		Client:        addrPort(c.GetDownstreamRemoteAddress()),
		Dialled:       addrPort(c.GetDownstreamLocalAddress()),
		Cluster:       c.GetUpstreamCluster(),
		Endpoint:      addrPort(c.GetUpstreamRemoteAddress()),
		Attempts:      c.GetUpstreamRequestAttemptCount(),
		BytesSent:     e.GetConnectionProperties().GetReceivedBytes(), // Envoy receives what the pod sends
		BytesReceived: e.GetConnectionProperties().GetSentBytes(),
		Failure:       c.GetUpstreamTransportFailureReason(),
		Wait:          -1,
	}
	if !r.Client.IsValid() || !r.Dialled.IsValid() {
		return Record{}, errors.New("read connection record: an end of the connection is missing")
	}
	if c.GetStartTime() == nil {
		return Record{}, errors.New("read connection record: the start is missing")
	}
	r.Start = c.GetStartTime().AsTime()
	if r.Open {
		return r, nil
	}
	r.Duration = c.GetDuration().AsDuration()
	closed, err := r.readTag(c.GetCustomTags()[recordTag])
	if err != nil {
		return Record{}, err
	}
	r.Outcome = recordOutcome(r, c.GetResponseFlags(), closed)
	return r, nil
}

// readTag reads what recordFormat wrote and returns how the client's side ended.
func (r *Record) readTag(tag string) (closed string, err error) {
	parts := strings.Split(tag, ";")
	if len(parts) != strings.Count(recordFormat, ";")+1 {
		return "", fmt.Errorf("read connection record: tag %q: want %d parts", tag, strings.Count(recordFormat, ";")+1)
	}
	if r.Pod, err = ParseListenerName(parts[0]); err != nil {
		return "", fmt.Errorf("read connection record: %w", err)
	}
	r.Reason = parts[1]
	if us, err := strconv.ParseInt(parts[3], 10, 64); err == nil && us >= 0 {
		r.Wait = time.Duration(us) * time.Microsecond
	}
	return parts[2], nil
}

// recordOutcome is the outcome by the same rules as outcomeRules has them for
// texts. A connection without a cluster and without a flag reached no proxy: the
// pod held too many.
func recordOutcome(r Record, f *dataaccesslogv3.ResponseFlags, closed string) Outcome {
	switch {
	case r.Reason != "":
		return Refused
	case f.GetUpstreamConnectionFailure() && r.Failure == "":
		return Timeout
	case f.GetUpstreamConnectionFailure():
		return ConnectFailed
	case f.GetNoHealthyUpstream(), f.GetNoClusterFound():
		return Unanswered
	case f.GetUpstreamRemoteReset():
		return ServerReset
	case r.Cluster == "":
		return Refused
	case closed == "RemoteReset":
		return ClientReset
	}
	return OK
}

func addrPort(a *corev3.Address) netip.AddrPort {
	s := a.GetSocketAddress()
	ip, err := netip.ParseAddr(s.GetAddress())
	if err != nil || s.GetPortValue() > 1<<16-1 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(s.GetPortValue()))
}
