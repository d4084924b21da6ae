// SPDX-License-Identifier: Apache-2.0

package main

import "strings"

// dashboard is one page of Grafana.
type dashboard struct {
	name, title, about string
	rows               []row
}

// row is a headline with panels of equal width below it.
type row struct {
	title  string
	panels []panel
}

// panel is a graph over time.
type panel struct {
	title, about string
	// unit is one of Grafana's: reqps, percentunit, s, bytes, short, cps, ...
	unit    string
	queries []query
	// stacked draws areas on top of each other.
	stacked bool
}

// query is an expression and the name of its lines. $where stands for the
// selection of installations that every query has.
type query struct{ expr, legend string }

const (
	gridWidth   = 24
	panelHeight = 8
	selection   = `namespace=~"$namespace"`
)

// one is a single query.
func one(expr, legend string) []query { return []query{{expr, legend}} }

type object = map[string]any

// source is the variable that names the Prometheus to ask.
func source() object { return object{"type": "prometheus", "uid": "${datasource}"} }

func (d dashboard) render() object {
	panels := []object{}
	y, id := 0, 1
	for _, r := range d.rows {
		panels = append(panels, object{
			"id": id, "type": "row", "title": r.title, "collapsed": false, "panels": []object{},
			"gridPos": object{"h": 1, "w": gridWidth, "x": 0, "y": y},
		})
		y, id = y+1, id+1
		width := gridWidth / len(r.panels)
		for i, p := range r.panels {
			panels = append(panels, p.render(id, object{"h": panelHeight, "w": width, "x": i * width, "y": y}))
			id++
		}
		y += panelHeight
	}
	return object{
		"uid": "inference-cache-" + d.name, "title": "inference-cache / " + d.title, "description": d.about,
		"tags": []string{"inference-cache"}, "schemaVersion": 39, "version": 1, "editable": true,
		"graphTooltip": 1, "refresh": "30s", "timezone": "", "time": object{"from": "now-6h", "to": "now"},
		"links": []object{{
			"title": "inference-cache", "type": "dashboards", "tags": []string{"inference-cache"},
			"asDropdown": true, "includeVars": true, "keepTime": true,
		}},
		"templating": object{"list": variables()},
		"panels":     panels,
	}
}

func variables() []object {
	const values = "label_values(inferencecache_build_info, namespace)"
	return []object{
		{"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
		{
			"name": "namespace", "label": "Namespace", "type": "query", "datasource": source(),
			"definition": values, "query": object{"query": values, "refId": "namespace"},
			"includeAll": true, "allValue": ".*", "multi": true, "refresh": 2, "sort": 1,
		},
	}
}

func (p panel) render(id int, position object) object {
	targets := make([]object, len(p.queries))
	for i, q := range p.queries {
		targets[i] = object{
			"refId": string(rune('A' + i)), "datasource": source(),
			"expr": strings.ReplaceAll(q.expr, "$where", selection), "legendFormat": q.legend,
		}
	}
	custom := object{"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10, "showPoints": "never"}
	if p.stacked {
		custom["stacking"], custom["fillOpacity"] = object{"mode": "normal", "group": "A"}, 40
	}
	defaults := object{"unit": p.unit, "min": 0, "custom": custom}
	if p.unit == "percentunit" {
		defaults["max"] = 1
	}
	return object{
		"id": id, "type": "timeseries", "title": p.title, "description": p.about, "datasource": source(),
		"gridPos": position, "targets": targets,
		"fieldConfig": object{"defaults": defaults, "overrides": []object{}},
		"options": object{
			"legend":  object{"displayMode": "list", "placement": "bottom", "showLegend": true},
			"tooltip": object{"mode": "multi", "sort": "desc"},
		},
	}
}

// rate is the growth of a counter by some labels.
func rate(family, by string, matchers ...string) string {
	return "sum by (" + by + ") (rate(" + selector(family, matchers) + "[$__rate_interval]))"
}

// total is rate over everything.
func total(family string, matchers ...string) string {
	return "sum(rate(" + selector(family, matchers) + "[$__rate_interval]))"
}

func selector(family string, matchers []string) string {
	return "inferencecache_" + family + "{" + strings.Join(append([]string{"$where"}, matchers...), ",") + "}"
}

// share is a counter's part of itself or of another.
func share(part, whole string) string { return part + " / " + whole }

// gauge sums a gauge by some labels.
func gauge(aggregation, family, by string, matchers ...string) string {
	return aggregation + " by (" + by + ") (" + selector(family, matchers) + ")"
}

// quantiles of a histogram, with an optional label to tell lines apart.
func quantiles(family, by string) []query {
	legend, labels := "", "le"
	if by != "" {
		legend, labels = " {{"+by+"}}", by+", le"
	}
	at := func(q string) string {
		return "histogram_quantile(" + q + ", sum by (" + labels + ") (rate(" + selector(family+"_bucket", nil) + "[$__rate_interval])))"
	}
	return []query{{at("0.5"), "p50" + legend}, {at("0.99"), "p99" + legend}}
}
