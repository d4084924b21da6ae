// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/inferencecache/inference-cache/internal/trace"
	"github.com/inferencecache/inference-cache/internal/trace/report"
)

type explainOptions struct {
	admin     string
	tokenFile string
	last      int
	id        string
	output    string
}

func (c *cli) newExplainCommand() *cobra.Command {
	options := &explainOptions{}
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Say where a gateway sent its latest requests, and why",
		Long: `explain reads the latest decisions from a gateway's memory: who chose the
replica, what was predicted, which gates others failed, and what the engine
found. Predictions are not hits; what the engine found is its own count.`,
		Example: `  inferencecache explain --last
  inferencecache explain --last 20 -o json
  inferencecache explain --id chatcmpl-3f9 --admin 127.0.0.1:8180`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && cmd.Flags().Changed("last") {
				return options.setLast(args[0])
			}
			return noArguments(cmd, args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runExplain(cmd.Context(), options) },
	}
	flags := cmd.Flags()
	flags.StringVar(&options.admin, "admin", "127.0.0.1:8080", "admin address of the gateway, or its URL; that of up is 127.0.0.1:8180")
	flags.StringVar(&options.tokenFile, "admin-token-file", "", "file with the admin address's bearer token")
	flags.IntVar(&options.last, "last", 1, "explain this many of the latest requests")
	flags.Lookup("last").NoOptDefVal = "1"
	flags.StringVar(&options.id, "id", "", "explain the requests with this id, the x-request-id of their answers")
	flags.StringVarP(&options.output, "output", "o", "text", "text or json")
	return cmd
}

// maxExplained is the most a gateway remembers.
const maxExplained = 1024

func (o *explainOptions) setLast(text string) error {
	number, err := strconv.Atoi(text)
	if err != nil {
		return usagef("--last %q: expected a number from 1 to %d", text, maxExplained)
	}
	o.last = number
	return nil
}

func (c *cli) runExplain(ctx context.Context, o *explainOptions) error {
	switch {
	case o.output != "text" && o.output != "json":
		return usagef("--output %q: expected text or json", o.output)
	case o.last < 1 || o.last > maxExplained:
		return usagef("--last %d: expected a number from 1 to %d", o.last, maxExplained)
	}
	answer, err := o.ask(ctx)
	if err != nil {
		return err
	}
	if len(answer.Requests) == 0 {
		if o.id != "" {
			return fmt.Errorf("the gateway remembers no request %q; it keeps the latest only", o.id)
		}
		return errors.New("the gateway has served no request yet")
	}
	return printExplained(c.stdout, answer, o.output)
}

func printExplained(w io.Writer, answer *report.Answer, output string) error {
	if output == "json" {
		return writeExplained(w, answer)
	}
	return report.Write(w, answer.Requests)
}

// writeExplained writes the records of each request after what they come to.
func writeExplained(w io.Writer, answer *report.Answer) error {
	type explained struct {
		report.Summary
		Records []*trace.Record `json:"records"`
	}
	out := struct {
		GatewayEpoch string      `json:"gateway_epoch"`
		Requests     []explained `json:"requests"`
	}{GatewayEpoch: answer.GatewayEpoch}
	for _, records := range answer.Requests {
		out.Requests = append(out.Requests, explained{report.Summarize(records), records})
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(out)
}

const (
	explainTimeout  = 10 * time.Second
	maxExplainBytes = 64 << 20
)

// ask gets the records from the gateway.
func (o *explainOptions) ask(ctx context.Context) (*report.Answer, error) {
	target, err := o.url()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, usagef("--admin %q: expected host:port", o.admin)
	}
	if o.tokenFile != "" {
		token, err := os.ReadFile(o.tokenFile)
		if err != nil {
			return nil, usagef("--admin-token-file: %w", err)
		}
		request.Header.Set("Authorization", "Bearer "+string(bytes.TrimSpace(token)))
	}
	transport := &http.Transport{} // no proxy: the token is for the gateway alone
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	var dial *net.OpError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial":
		return nil, fmt.Errorf("no gateway answers on %s; that of up has its admin address on 127.0.0.1:8180: %w", o.admin, dial)
	case err != nil:
		return nil, fmt.Errorf("ask the gateway: %w", err)
	}
	defer response.Body.Close()
	return readExplained(response)
}

func readExplained(response *http.Response) (*report.Answer, error) {
	body, err := io.ReadAll(io.LimitReader(response.Body, maxExplainBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the gateway's answer: %w", err)
	case len(body) > maxExplainBytes:
		return nil, errors.New("the gateway's answer is too long: ask for fewer requests")
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the gateway refuses with status %d: %s", response.StatusCode, refusal(body))
	}
	var answer report.Answer
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("read the gateway's answer: %w", err)
	}
	for i, records := range answer.Requests {
		answer.Requests[i] = slices.DeleteFunc(records, func(r *trace.Record) bool { return r == nil })
	}
	return &answer, nil
}

// refusal is what an error of the gateway says.
func refusal(body []byte) string {
	var fault struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &fault) != nil || fault.Error.Message == "" {
		return "is this a gateway's admin address?"
	}
	return fault.Error.Message
}

func (o *explainOptions) url() (string, error) {
	base := o.admin
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", usagef("--admin %q: expected host:port or a URL", o.admin)
	}
	query := url.Values{"last": {strconv.Itoa(o.last)}}
	if o.id != "" {
		query.Set("id", o.id)
		query.Set("last", strconv.Itoa(max(o.last, 16)))
	}
	u = u.JoinPath("debug", "trace")
	u.RawQuery = query.Encode()
	return u.String(), nil
}
