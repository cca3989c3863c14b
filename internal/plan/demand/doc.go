// SPDX-License-Identifier: Apache-2.0

// Package demand is the state machine of the names that Envoy asked for on
// demand: which are answered, which wait, which are turned away and which are
// remembered for the next start.
//
// Envoy asks for a name once in its life, never again, and never unsubscribes.
// So a name that is asked and answered is never withdrawn while the Envoy that
// asked lives; only its answer changes. What bounds the node is the admission:
//
//   - A declared TCP port of a known Service is always admitted and remembered
//     on disk with its last dial.
//   - Every other in-range address (an unknown one, an undeclared port, another
//     balancer's address) shares one budget on the node and is not remembered.
//     A name leaves the budget when a Service takes it over. Past the budget a
//     name is turned away: published empty and withdrawn at once, until a
//     Service takes it over.
//   - An unknown address about to be refused is first held for a moment, so that
//     a Service created a moment before its first dial is served. Objects come one
//     by one: a Service that turns up without endpoints does not end the hold.
//     Where somebody can look (Config.LookRate), the look decides instead: below.
//     A Service port whose endpoints are yet to be told (plan.Answer.Early) is held
//     for as long as a look would be: where there is an API server, there is a
//     controller that has still to write its slices.
//   - An address outside the Service range, and the API server's, is never
//     answered. It is kept in mind, since Envoy will not ask again, and answered
//     when a range takes it in.
//   - Nothing is answered before the sources have synced.
//
// A fresh Envoy starts with the remembered Service ports. Once no older Envoy's
// stream lives, every name that no living stream has asked for is forgotten, except
// Service ports that still exist and were dialled within the window.
//
// # Looks
//
// That the index does not know an address is a suspicion: it follows its source and
// is never ahead of it. A cluster has one place that knows: for every ClusterIP the
// API server makes an object named by it, an IPAddress (networking.k8s.io/v1,
// KEP-1880). So before an unknown address is refused it is looked at there, and the
// dial waits, LookWait at most:
//
//   - nobody has it: refused as no-service;
//   - a Service has it: the watch will tell of it. When it does not in time, the
//     dial is passed through;
//   - something else has it: foreign, passed through. An address of the range that
//     somebody allocated for a thing of its own is no Service of ours to refuse;
//   - it cannot be seen (API server away, slow, refusing, without such objects),
//     or its turn under the rate would come too late: passed through at once.
//
// Why "nobody has it" is proof. The API server creates the IPAddress before it
// stores the Service (it is the allocation), and deletes it after the Service is
// gone. A GET without a resource version is answered from etcd's quorum, not from a
// cache. So when an address is absent at the time of the look, no Service had it
// that was stored before and still is, and whoever dialled before the look dialled
// no Service. Hence a look counts only for names that were asked for before it was
// begun: one that was under way already proves nothing. The converse does not hold,
// and is not needed: an address may be allocated without a Service, for the moment
// until it is stored, or for a few minutes when the API server died in between and
// its repair loop has yet to notice. Such an address is passed through and looked at
// again. A dry run allocates nothing and stores nothing. A Service that is being
// deleted keeps its address until its finalizers are gone, and the watch knows it.
// An address that goes from one Service to another is freed in between.
//
// It is proof for ClusterIPs. An external address or a ClusterSetIP that lies in the
// range has no such object, and is known by the watches alone.
//
// What is not proof is a finding that is old. After the look it is the watch that
// tells of a new Service; while the sources are known to be behind (Behind), nothing
// is refused for being unknown, and when they have caught up, looks begun before
// count no more. A name that is refused follows the watch at once; between the
// storing of a Service and its event, dials of a name that was refused before it
// are still refused. That a Service is gone is told by the source itself and needs
// no look. An Envoy that comes back with unknown names has them passed through
// until they have been looked at.
//
// One suspect has one look under way that counts; MaxLooks are under way on the
// node; they begin at a rate, those first for which a connection waits. No name
// past the budget is looked at, so a scan costs as many looks as the budget has
// names. After a look that could not see there is a pause, doubled each time up to a
// minute, and then one look tries: an API server that is away or forbids looks is
// asked once a minute, and nobody waits for it. What was passed through is looked
// at again after a minute; what is refused, after five minutes if it is dialled.
//
// The machine is deterministic: equal configurations and histories give equal
// states and equal effects. Time and decisions are arguments. It has no
// goroutines, clocks, I/O or logs, and is not safe for concurrent use.
package demand
