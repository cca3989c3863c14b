// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"aether.io/aether/internal/model"
)

// Counts are read for the question: whoever asks after a dial sees the dial. An
// Envoy that does not answer keeps nobody from an answer.
func TestQuestionsReadTheCountsFirst(t *testing.T) {
	counted := map[string]count{"svc.default.web.http": {total: 3, active: 1}}
	for name, c := range map[string]struct {
		read Scraper
		want int // readings the loop is told
	}{
		"Envoy answers": {func(context.Context) (map[string]count, error) { return counted, nil }, 1},
		"Envoy is away": {func(context.Context) (map[string]count, error) { return nil, errors.New("no socket") }, 0},
		"Envoy hangs": {func(ctx context.Context) (map[string]count, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, 0},
	} {
		for _, path := range []string{"/v1/services", "/v1/explain?address=10.96.0.10:80"} {
			t.Run(name+" "+path, func(t *testing.T) {
				in := make(chan message)
				told := make(chan int, 1)
				go func() {
					readings := 0
					for m := range in {
						switch m := m.(type) {
						case scraped:
							readings++
						case namesQuery:
							m.reply <- names{synced: true, state: model.New(model.Options{}), known: []known{{}}}
							told <- readings
							return
						}
					}
				}()
				h := cliHandler{mailbox{to: in, done: make(chan struct{})}, c.read}
				w := httptest.NewRecorder()
				h.routes().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
				if got := <-told; got != c.want {
					t.Errorf("the loop was told %d readings before the question, want %d", got, c.want)
				}
			})
		}
	}
}
