// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/model"
)

// cniHandler serves the CNI plugin:
//
//	POST   /v1/pods                     body api.Pod
//	DELETE /v1/pods/{namespace}/{name}  optional query uid
//
// POST replies 200 when Envoy has taken the pod's listener and the pod is on
// disk, 202 when that took more than two seconds (it goes on), 400 for a pod that
// cannot be, 409 for one that contradicts another, 422 with Envoy's words when
// Envoy rejected the listener. DELETE replies 204, also for an unknown pod. With
// uid it deletes only the pod of that UID.
type cniHandler struct {
	loop       mailbox
	checkNetNS func(string) error
}

func (h cniHandler) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/pods", h.add)
	mux.HandleFunc("DELETE /v1/pods/{namespace}/{name}", h.remove)
	return jsonErrors(mux)
}

func (h cniHandler) add(w http.ResponseWriter, r *http.Request) {
	var p api.Pod
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&p); err != nil {
		fail(w, http.StatusBadRequest, fmt.Errorf("read pod: %w", err))
		return
	}
	wl, err := workload(p, h.checkNetNS)
	if err != nil {
		fail(w, http.StatusBadRequest, fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err))
		return
	}
	replies := make(chan podReply, 1)
	got, err := ask(r.Context(), h.loop, podAdd{workload: wl, annotations: captureAnnotations(p.Annotations), reply: replies}, replies)
	switch {
	case err != nil:
		unavailable(w, err)
	case got.conflict != "":
		fail(w, http.StatusConflict, fmt.Errorf("pod %s: %s", wl.Name, got.conflict))
	case got.state == listenerRejected:
		fail(w, http.StatusUnprocessableEntity, fmt.Errorf("pod %s: envoy rejected its listener: %s", wl.Name, got.nack))
	default:
		code := http.StatusOK
		if got.state == listenerPending {
			code = http.StatusAccepted
		}
		reply(w, code, api.PodStatus{Namespace: wl.Name.Namespace, Name: wl.Name.Name, IP: wl.IP.String(), Listener: got.state})
	}
}

func (h cniHandler) remove(w http.ResponseWriter, r *http.Request) {
	name := model.Name{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
	if !label.MatchString(name.Namespace) || !validName(name.Name) {
		fail(w, http.StatusBadRequest, errors.New("no name of a pod: "+name.String()))
		return
	}
	gone := make(chan struct{}, 1)
	if _, err := ask(r.Context(), h.loop, podDelete{name: name, uid: r.URL.Query().Get("uid"), reply: gone}, gone); err != nil {
		unavailable(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
