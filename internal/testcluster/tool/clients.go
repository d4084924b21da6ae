// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// access is how a client proves itself and what it trusts.
type access struct {
	caFile, serverName, tokenFile string
	timeout                       time.Duration
}

func (a *access) addFlags(flags *flag.FlagSet) {
	flags.StringVar(&a.caFile, "ca-file", "", "authority of the server's certificate")
	flags.StringVar(&a.serverName, "server-name", "", "name in the server's certificate (default the one that is called)")
	flags.StringVar(&a.tokenFile, "token-file", "", "bearer token to show")
	flags.DurationVar(&a.timeout, "timeout", 10*time.Second, "how long to wait for the answer")
}

// tls returns nil without an authority.
func (a *access) tls() (*tls.Config, error) {
	if a.caFile == "" {
		return nil, nil
	}
	text, err := os.ReadFile(a.caFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate", a.caFile)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: a.serverName}, nil
}

// bearer returns the authorization header, empty without a token.
func (a *access) bearer() (string, error) {
	if a.tokenFile == "" {
		return "", nil
	}
	text, err := os.ReadFile(a.tokenFile)
	return "Bearer " + strings.TrimSpace(string(text)), err
}

func get(ctx context.Context, args []string, out io.Writer) error {
	var a access
	flags := flag.NewFlagSet("get", flag.ContinueOnError)
	a.addFlags(flags)
	method := flags.String("method", http.MethodGet, "method")
	body := flags.String("body", "", "JSON to send")
	header := http.Header{}
	flags.Func("header", "header to send, as NAME: VALUE; may be repeated", func(text string) error {
		name, value, found := strings.Cut(text, ":")
		if !found {
			return errors.New("expected NAME: VALUE")
		}
		header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	return only(flags.Args(), func(url string) error {
		ctx, cancel := context.WithTimeout(ctx, a.timeout)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, *method, url, strings.NewReader(*body))
		if err != nil {
			return err
		}
		request.Header = header
		bearer, err := a.bearer()
		if err != nil {
			return err
		}
		if bearer != "" {
			request.Header.Set("Authorization", bearer)
		}
		if *body != "" {
			request.Header.Set("Content-Type", "application/json")
		}
		config, err := a.tls()
		if err != nil {
			return err
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if _, err := io.Copy(out, response.Body); err != nil {
			return err
		}
		if response.StatusCode >= http.StatusMultipleChoices {
			return errors.New(response.Status)
		}
		return nil
	})
}

// question is a lookup and who asks.
type question struct {
	access
	server, prompt, tokens string
	asked                  pb.LookupRouteRequest
}

func (q *question) addFlags(flags *flag.FlagSet) {
	q.access.addFlags(flags)
	flags.StringVar(&q.server, "server", "", "gRPC target of the server")
	flags.StringVar(&q.asked.TenantId, "tenant", "", "tenant")
	flags.StringVar(&q.asked.ModelId, "model", "", "model")
	flags.StringVar(&q.asked.HashScheme, "hash-scheme", "", "hash scheme, such as vllm; without one there is no hint")
	flags.StringVar(&q.asked.AdapterId, "adapter", "", "adapter")
	flags.StringVar(&q.tokens, "tokens", "", "token ids, separated by commas")
	flags.StringVar(&q.prompt, "bytes", "", "prompt whose bytes are its token ids, as those of simulated engines are")
}

func (q *question) request() (*pb.LookupRouteRequest, error) {
	for _, b := range []byte(q.prompt) {
		q.asked.TokenIds = append(q.asked.TokenIds, uint32(b))
	}
	for field := range strings.SplitSeq(q.tokens, ",") {
		if field == "" {
			continue
		}
		id, err := strconv.ParseUint(field, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("--tokens: %w", err)
		}
		q.asked.TokenIds = append(q.asked.TokenIds, uint32(id))
	}
	return &q.asked, nil
}

func lookup(ctx context.Context, args []string, out io.Writer) error {
	var q question
	flags := flag.NewFlagSet("lookup", flag.ContinueOnError)
	q.addFlags(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || q.server == "" {
		return errors.New("expected --server and no argument")
	}
	request, err := q.request()
	if err != nil {
		return err
	}
	conn, err := q.connect(q.server)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	answer, err := q.ask(ctx, pb.NewInferenceCacheClient(conn), request)
	if err != nil {
		return err
	}
	text, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(answer)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s\n", text)
	return err
}

// connect opens no connection before the first call.
func (a *access) connect(server string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	config, err := a.tls()
	if err != nil {
		return nil, err
	}
	transport := insecure.NewCredentials()
	if config != nil {
		transport = credentials.NewTLS(config)
	}
	return grpc.NewClient(server, append(options, grpc.WithTransportCredentials(transport))...)
}
