// SPDX-License-Identifier: Apache-2.0

// Command tool is what tests run in pods, whose images have no shell.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

const usage = `tool is run in pods by tests.

  tool pause                  wait for a signal
  tool serve ADDRESS          answer every GET with host name, path and caller
  tool get [FLAGS] URL        print what a URL answers; see tool get -h
  tool resolve NAME           print the addresses of a name, one a line
  tool cat FILE...            print files
  tool ls FOLDER              print the names in a folder
  tool server [FLAGS]         stand in for LMCache's server, with its flags
  tool lookup [FLAGS]         ask a server where a prompt should go; see tool lookup -h
  tool lookups [FLAGS]        do so until a signal, one line of JSON for each; see tool lookups -h
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "tool:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("expected a command:\n%s", usage)
	}
	rest := args[1:]
	switch args[0] {
	case "pause":
		<-ctx.Done()
		return nil
	case "serve":
		return only(rest, func(address string) error { return serve(ctx, address) })
	case "get":
		return get(ctx, rest, out)
	case "resolve":
		return only(rest, func(name string) error { return resolve(ctx, name, out) })
	case "cat":
		return cat(rest, out)
	case "ls":
		return only(rest, func(folder string) error { return list(folder, out) })
	case "server":
		return standIn(ctx, rest)
	case "lookup":
		return lookup(ctx, rest, out)
	case "lookups":
		return lookups(ctx, rest, out)
	case "help", "-h", "--help":
		_, err := io.WriteString(out, usage)
		return err
	}
	return fmt.Errorf("unknown command %q\n%s", args[0], usage)
}

// only calls do with the one argument there must be.
func only(args []string, do func(string) error) error {
	if len(args) != 1 {
		return fmt.Errorf("expected one argument, got %d", len(args))
	}
	return do(args[0])
}

const serveGrace = time.Second

func serve(ctx context.Context, address string) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "host %s\npath %s\nfrom %s\n", host, r.URL.Path, r.RemoteAddr)
	})}
	fmt.Println("serving on", listener.Addr())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	fmt.Println("ending")
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), serveGrace)
	defer cancel()
	return server.Shutdown(closing)
}

func resolve(ctx context.Context, name string, out io.Writer) error {
	addresses, err := net.DefaultResolver.LookupHost(ctx, name)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, strings.Join(addresses, "\n"))
	return err
}

func cat(files []string, out io.Writer) error {
	if len(files) == 0 {
		return errors.New("expected a file")
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if _, err := out.Write(text); err != nil {
			return err
		}
	}
	return nil
}

func list(folder string, out io.Writer) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		fmt.Fprintln(out, entry.Name())
	}
	return nil
}
