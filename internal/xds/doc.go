// SPDX-License-Identifier: Apache-2.0

// Package xds serves Envoy its configuration: a delta ADS server for the Envoys
// of one node, which connect through a Unix socket. go-control-plane's delta
// server runs the streams; what to respond with is found here, from the names that
// something happened to. (Its linear cache compares everything offered with
// everything sent, several times per first connection, and cannot hold a name
// back, send one again, or keep a rejected one from being taken away.)
//
// It knows names, types, bytes and versions. What a cluster or a listener means,
// who should get one and why is decided elsewhere; nothing here looks into a
// resource.
//
// # What a publisher may rely on
//
//   - A version is the hash of a resource's deterministic bytes. A restarted
//     server that publishes what its predecessor published sends nothing to an
//     Envoy that already has it. Publishing equal bytes changes nothing.
//   - One Publish is offered in the order assignments, clusters, listeners, then
//     removals in the reverse order. Within a type its additions come to a stream
//     in one response, but for those that wait for an acknowledgement. Across types
//     only the order is given, and it is the order of offering: a stream that still
//     owes an acknowledgement of one type may get another type first. Who needs a
//     cluster in place before a listener waits for its Acked.
//   - A name has at most one unacknowledged update per stream. Meanwhile newer
//     versions replace each other, and the newest is sent after the
//     acknowledgement.
//   - A resource that is Named goes only to Envoys that asked for it by name or
//     list it, and not to one that asks for all there is.
//   - Names that nobody published are not answered: Envoy waits for them, and is
//     told when they are published.
//   - A cluster whose bytes change has its assignment of the same name sent again:
//     Envoy warms the new cluster with it, and asks for nothing, because it is
//     subscribed already (envoyproxy/envoy issue 47302).
//
// # Fill first
//
// When Envoy reconnects it lists what it holds. Whatever it lists and nobody has
// published is answered as removed. So publish all that is known before Serve, and
// publish what a stream's FirstRequest names before calling its Done: the request
// is held until then, for at most Config.HoldTimeout. This holds
// for every type, assignments included: an assignment that is missing while its
// cluster is there empties the cluster.
//
// # Rejected resources
//
// Envoy's rejection (NACK) is never fatal. The resources that Envoy's words name
// go back to the last version an Envoy accepted, or are withdrawn if there is
// none; the other resources of the same response are sent again, because Envoy
// may have skipped them. When the words name nobody, the response is split until
// the guilty are found. Envoy's words are kept until other bytes under that name
// are accepted. Publishing the rejected bytes once more changes nothing; to have
// them tried again, remove the name first.
//
// One gap is Envoy's own: what it applied of a response that it rejected in part
// it does not list when it reconnects. The re-sending closes it within one round
// trip; should the stream break just then, a resource that is removed or set back
// before Envoy returns stays as it is there.
package xds
