// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/http"
	"net/http/pprof"
	"net/url"
	"strconv"

	"github.com/inferencecache/inference-cache/internal/trace/report"
)

// maxTraced bounds the requests of one answer.
const maxTraced = 1024

// serveTrace answers with the records of the latest requests. The query may
// hold last, their number (default 1), and id, the root id they must have.
func (g *Gateway) serveTrace(w http.ResponseWriter, request *http.Request) {
	last, root, fault := traceQuery(request.URL.Query())
	if fault != nil {
		fault.write(w)
		return
	}
	writeJSON(w, report.Answer{GatewayEpoch: g.trace.Epoch(), Requests: g.trace.Requests(last, root)})
}

func traceQuery(query url.Values) (last int, root string, fault *apiError) {
	last, root = 1, query.Get("id")
	text := query.Get("last")
	if text == "" {
		return last, root, nil
	}
	last, err := strconv.Atoi(text)
	if err != nil || last < 1 || last > maxTraced {
		return 0, "", invalidRequest("last", "last: expected a number from 1 to "+strconv.Itoa(maxTraced))
	}
	return last, root, nil
}

// addProfiles serves what the pprof tool reads.
func (g *Gateway) addProfiles(mux *http.ServeMux) {
	for path, handler := range map[string]http.HandlerFunc{
		"/debug/pprof/": pprof.Index, "/debug/pprof/cmdline": pprof.Cmdline, "/debug/pprof/profile": pprof.Profile,
		"/debug/pprof/symbol": pprof.Symbol, "/debug/pprof/trace": pprof.Trace,
	} {
		mux.HandleFunc(path, g.operatorsOnly(handler))
	}
}
