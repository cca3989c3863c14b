// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"aether.io/aether/internal/agent/api"
)

const (
	provenMajor, provenMinor = 1, 40

	// fewDescriptors is a limit that allows some 2,500 connections.
	fewDescriptors = 8192
	// share of a limit, in percent, from which on a person should look.
	nearly = 80
	// slowReset is longer than a refusal takes in the worst storm.
	slowReset = time.Second

	statusCommand = "aetherctl status"
	raiseNoFile   = "raise Envoy's descriptor limit (systemd: LimitNOFILE=1048576; a shell: ulimit -n 1048576), make its bootstrap again (aether-agent bootstrap --descriptor-limit 1048576 ...) and restart Envoy"
	startEnvoy    = "start Envoy with the bootstrap of `aether-agent bootstrap`, best by `aether-agent proxy`; why it ended is in its log"
)

func assessEnvoy(f Facts) []api.Finding {
	e := f.Envoy
	out := []api.Finding{connected(e)}
	out = append(out, server(e, f.RunDir)...)
	out = append(out, supervision(e)...)
	return append(out, warming(e, f.RunDir), rejections(f.Agent), descriptors(e), refuser(f.Refuser))
}

// askAdmin is the command that asks Envoy itself.
func askAdmin(runDir, path string) string {
	return "curl --unix-socket " + runDir + "/envoy-admin.sock http://envoy/" + path
}

func connected(e Envoy) api.Finding {
	switch len(e.Connected) {
	case 0:
		return finding("envoy-connected", api.FindingFailed, "no Envoy is connected to the agent", startEnvoy)
	case 1:
		return ok("envoy-connected", "one Envoy is connected (%s)", e.Connected[0])
	default:
		return ok("envoy-connected", "%d Envoys are connected (%s): a hot restart is under way", len(e.Connected), strings.Join(e.Connected, ", "))
	}
}

func server(e Envoy, runDir string) []api.Finding {
	if e.Server.Err != "" {
		why := "Envoy's admin socket does not answer: " + e.Server.Err
		return []api.Finding{notChecked("envoy-version", why), finding("envoy-state", api.FindingFailed, why, startEnvoy)}
	}
	s := e.Server.Value
	version := ok("envoy-version", "Envoy is of version %s", s.Version)
	switch order := compareToProven(s.Version); {
	case order < 0:
		version = finding("envoy-version", api.FindingFailed, "Envoy is of version "+s.Version, "make envoy", "install Envoy 1.40")
	case order > 0:
		version = finding("envoy-version", api.FindingWarning, "Envoy is of version "+s.Version+", not 1.40", "make envoy", "install Envoy 1.40")
	}
	state := ok("envoy-state", "Envoy is LIVE, since %s", s.Uptime)
	if s.State != "LIVE" {
		state = finding("envoy-state", api.FindingWarning, fmt.Sprintf("Envoy is %s, since %s", s.State, s.Uptime), askAdmin(runDir, "server_info"))
	}
	return []api.Finding{version, state}
}

// compareToProven compares major and minor; what cannot be read counts as older.
func compareToProven(version string) int {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return -1
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	if err1 != nil || err2 != nil {
		return -1
	}
	return slices.Compare([]int{major, minor}, []int{provenMajor, provenMinor})
}

func supervision(e Envoy) []api.Finding {
	s := e.Supervisor
	if s.Err != "" {
		why := "the supervisor's socket does not answer: " + s.Err
		return []api.Finding{notChecked("envoy-processes", why), notChecked("envoy-supervised", why), notChecked("envoy-restarts", why)}
	}
	if s.Value.Absent {
		const why = "Envoy is not supervised by `aether-agent proxy`"
		return []api.Finding{
			notChecked("envoy-processes", why),
			finding("envoy-supervised", api.FindingNote, "no supervisor answers: "+why+", so whatever started it must see to it", "aether-agent proxy --help"),
			notChecked("envoy-restarts", why),
		}
	}
	running := ok("envoy-processes", "%s", processes(s.Value.Epochs))
	if s.Value.Epochs > 2 {
		running = finding("envoy-processes", api.FindingWarning, processes(s.Value.Epochs), "aetherctl proxy status")
	}
	supervised := ok("envoy-supervised", "Envoy is supervised (%s)", s.Value.State)
	restarts := ok("envoy-restarts", "Envoy has not ended unasked since its supervisor started")
	if s.Value.Restarts > 0 {
		restarts = finding("envoy-restarts", api.FindingWarning,
			fmt.Sprintf("Envoy ended unasked %s since its supervisor started, last: %s", times(s.Value.Restarts), s.Value.LastExit),
			"read Envoy's log from before its end; then, to count anew: restart the supervisor")
	}
	return []api.Finding{running, supervised, restarts}
}

func processes(n int) string {
	if n == 1 {
		return "one Envoy process runs"
	}
	return fmt.Sprintf("%d Envoy processes run", n)
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func warming(e Envoy, runDir string) api.Finding {
	if e.Stats.Err != "" {
		return notChecked("envoy-warming", "Envoy's statistics cannot be read: "+e.Stats.Err)
	}
	w := e.StillWarming
	if w == (Warming{}) {
		return ok("envoy-warming", "no cluster and no listener has been warming for long")
	}
	return finding("envoy-warming", api.FindingWarning,
		fmt.Sprintf("%s and %s have been warming for over a second", plural(int(w.Clusters), "cluster"), plural(int(w.Listeners), "listener")),
		askAdmin(runDir, "'config_dump?resource=dynamic_warming_clusters'"), statusCommand)
}

func rejections(a Agent) api.Finding {
	if len(a.Rejected) == 0 {
		return ok("envoy-rejections", "Envoy has accepted all clusters and assignments")
	}
	var seen []string
	for _, r := range a.Rejected {
		seen = append(seen, fmt.Sprintf("%s %s: %s", r.Type, r.Name, r.Words))
	}
	return finding("envoy-rejections", api.FindingFailed, "Envoy rejected "+strings.Join(seen, "; "),
		statusCommand, "change what the resource is made of (the Service or its slices); it is sent again by itself")
}

func descriptors(e Envoy) api.Finding {
	const id = "envoy-descriptors"
	switch {
	case e.PID.Err != "":
		return notChecked(id, "Envoy's process is not known: "+e.PID.Err)
	case e.Files.Err != "":
		return notChecked(id, fmt.Sprintf("process %d: %s", e.PID.Value, e.Files.Err))
	case e.MaxConnections.Err != "":
		return notChecked(id, "Envoy's connection limit cannot be read: "+e.MaxConnections.Err)
	}
	files, most := e.Files.Value, e.MaxConnections.Value
	seen := fmt.Sprintf("Envoy (pid %d) has %d of %d descriptors open; it takes at most %d connections", e.PID.Value, files.Open, files.Limit, most)
	switch {
	case most == 0:
		return finding(id, api.FindingFailed, seen+": no limit of connections is set", "make Envoy's bootstrap with `aether-agent bootstrap`")
	case most*3 > files.Limit:
		return finding(id, api.FindingFailed, seen+": three descriptors for each do not fit", raiseNoFile)
	case files.Open*100 >= files.Limit*nearly:
		return finding(id, api.FindingFailed, seen, raiseNoFile)
	case files.Limit < fewDescriptors:
		return finding(id, api.FindingWarning, seen+": few for a node", raiseNoFile)
	}
	return ok(id, "%s", seen)
}

func refuser(r Look[time.Duration]) api.Finding {
	const id = "refuser"
	switch {
	case r.Err != "":
		return finding(id, api.FindingFailed, "a connection to the refuser was not reset: "+r.Err,
			"restart the agent", "read the agent's log for `refuse`")
	case r.Value > slowReset:
		return finding(id, api.FindingWarning, fmt.Sprintf("the refuser took %s to reset a connection", r.Value.Round(time.Millisecond)),
			"aetherctl observe --refused   # who is refused most")
	}
	return ok(id, "the refuser reset a connection after %s", r.Value.Round(time.Millisecond))
}
