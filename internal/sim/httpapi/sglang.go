// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"net"
	"net/http"
	"strconv"
	"strings"
)

func (h *Handler) sglangRoutes() {
	h.mux.HandleFunc("GET /health_generate", empty)
	h.mux.HandleFunc("GET /model_info", h.modelInfo)
	h.mux.HandleFunc("GET /get_model_info", h.modelInfo)
	h.mux.HandleFunc("GET /server_info", h.serverInfo)
	h.mux.HandleFunc("GET /get_server_info", h.serverInfo)
	h.mux.HandleFunc("GET /v1/loads", h.loads)
	h.mux.HandleFunc("GET /flush_cache", h.resetCache)
	h.mux.HandleFunc("POST /flush_cache", h.resetCache)
}

func (h *Handler) modelInfo(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, map[string]any{"model_path": h.options.Model, "is_generation": true})
}

func (h *Handler) serverInfo(w http.ResponseWriter, _ *http.Request) {
	config := h.options.Ranks[0].Config()
	writeJSON(w, map[string]any{
		"version": h.options.Version, "served_model_name": h.options.Model,
		"page_size": config.BlockSize, "dp_size": len(h.options.Ranks),
		"max_total_num_tokens": config.BlockSize * config.CapacityBlocks,
		"kv_events":            h.eventInfo(config.BlockSize),
	})
}

// eventInfo is null without events.
func (h *Handler) eventInfo(blockSize int) any {
	if len(h.options.Events) == 0 {
		return nil
	}
	host, port, err := net.SplitHostPort(strings.TrimPrefix(h.options.Events[0].Endpoint, "tcp://"))
	if err != nil {
		return nil
	}
	base, _ := strconv.Atoi(port)
	return map[string]any{
		"publisher": "zmq", "endpoint_host": host, "endpoint_port_base": base,
		"topic": h.options.Events[0].Topic, "block_size": blockSize, "dp_size": len(h.options.Ranks),
	}
}

func (h *Handler) loads(w http.ResponseWriter, _ *http.Request) {
	loads := make([]map[string]any, len(h.options.Ranks))
	for i, rank := range h.options.Ranks {
		stats, config := rank.Stats(), rank.Config()
		loads[i] = map[string]any{
			"dp_rank": i, "num_running_reqs": stats.Running, "num_waiting_reqs": stats.Waiting,
			"num_waiting_uncached_tokens": stats.WaitingTokens,
			"num_used_tokens":             stats.UsedBlocks * config.BlockSize,
			"max_total_num_tokens":        stats.CapacityBlocks * config.BlockSize,
			"max_running_requests":        config.MaxRunning,
			"token_usage":                 usageOf(stats), "cache_hit_rate": hitRate(stats),
		}
	}
	writeJSON(w, map[string]any{
		"timestamp": float64(h.options.Clock.Now().UnixMilli()) / 1000, "version": h.options.Version, "loads": loads,
	})
}
