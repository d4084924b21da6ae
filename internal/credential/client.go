// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/inferencecache/inference-cache/internal/auth"
)

// ErrOptions marks options that cannot work.
var ErrOptions = errors.New("invalid credentials")

// Options of a Client. The zero value shows nothing and uses no TLS.
type Options struct {
	// CAFile holds the authorities of servers' certificates and switches TLS
	// on. Default no TLS.
	CAFile string
	// Roots are the authorities where no CAFile is given, and switch TLS on
	// too. Default none.
	Roots Roots
	// ServerName is the name in servers' certificates. Default the host that
	// is dialled.
	ServerName string
	// TokenFile holds the bearer token of calls. Default none.
	TokenFile string
	// InsecureToken sends it without TLS beyond loopback. Default false.
	InsecureToken bool
	// CertFile and KeyFile are the client certificate. Default none; both or
	// neither, and only with TLS.
	CertFile, KeyFile string
	// Logger is told when a file becomes unusable. Default none.
	Logger *slog.Logger
}

// Roots are certificate authorities, which may change between calls.
type Roots interface{ Pool() *x509.CertPool }

// Client has the credentials of calls. It is safe for concurrent use.
type Client struct {
	options Options
	roots   Roots      // nil without TLS
	token   *tokenFile // nil without a token
}

// Open reads the files but the token's, which may come later. Errors are
// ErrOptions.
func Open(options Options) (*Client, error) {
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Client{options: options}
	if options.TokenFile != "" {
		c.token = &tokenFile{path: options.TokenFile, open: options.CAFile == "" && options.Roots == nil}
	}
	switch {
	case (options.CertFile == "") != (options.KeyFile == ""):
		return nil, fmt.Errorf("%w: a client certificate needs both a certificate file and a key file", ErrOptions)
	case options.CAFile != "":
		roots, err := auth.OpenRoots(options.CAFile, options.Logger)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrOptions, err)
		}
		c.roots = roots
	case options.Roots != nil:
		c.roots = options.Roots
	case options.CertFile != "":
		return nil, fmt.Errorf("%w: a client certificate needs the CA file of the server", ErrOptions)
	}
	if options.CertFile != "" {
		if _, err := tls.LoadX509KeyPair(options.CertFile, options.KeyFile); err != nil {
			return nil, fmt.Errorf("%w: client certificate: %w", ErrOptions, err)
		}
	}
	return c, nil
}

// Check refuses a host to which the token would travel in the open. Errors are
// ErrOptions.
func (c *Client) Check(host string) error {
	if c.token == nil || c.roots != nil || c.options.InsecureToken || loopback(host) {
		return nil
	}
	return fmt.Errorf("%w: host %.200q: a token needs TLS or loopback", ErrOptions, host)
}

func loopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}

// DialOptions are those of a connection to a host.
func (c *Client) DialOptions(host string) []grpc.DialOption {
	transport := insecure.NewCredentials()
	if c.roots != nil {
		transport = &verifying{client: c, serverName: c.serverName(host)}
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(transport)}
	if c.token != nil {
		options = append(options, grpc.WithPerRPCCredentials(c.token))
	}
	return options
}

func (c *Client) serverName(host string) string {
	if c.options.ServerName != "" {
		return c.options.ServerName
	}
	return host
}

// Authorization returns the value of the authorization metadata of calls, ""
// without a token.
func (c *Client) Authorization() (string, error) {
	if c.token == nil {
		return "", nil
	}
	return c.token.authorization()
}

// config is the TLS of a handshake that begins now.
func (c *Client) config(serverName string) *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.roots.Pool(), ServerName: serverName}
	if c.options.CertFile != "" {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(c.options.CertFile, c.options.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("client certificate: %w", err)
			}
			return &pair, nil
		}
	}
	return config
}

// verifying makes each handshake with what the files say at that time.
type verifying struct {
	client     *Client
	serverName string
}

var _ credentials.TransportCredentials = (*verifying)(nil)

func (v *verifying) current() credentials.TransportCredentials {
	return credentials.NewTLS(v.client.config(v.serverName))
}

// ClientHandshake implements credentials.TransportCredentials.
func (v *verifying) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return v.current().ClientHandshake(ctx, authority, raw)
}

// ServerHandshake implements credentials.TransportCredentials.
func (v *verifying) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are those of a client")
}

// Info implements credentials.TransportCredentials.
func (v *verifying) Info() credentials.ProtocolInfo { return v.current().Info() }

// Clone implements credentials.TransportCredentials.
func (v *verifying) Clone() credentials.TransportCredentials {
	clone := *v
	return &clone
}

// OverrideServerName implements credentials.TransportCredentials.
func (v *verifying) OverrideServerName(name string) error {
	v.serverName = name
	return nil
}

// tokenFile is a bearer token on disk.
type tokenFile struct {
	path string
	// open allows it to travel without TLS.
	open bool

	mu    sync.Mutex
	read  os.FileInfo // of the file as it was read last, guarded by mu
	value string      // guarded by mu
}

func (f *tokenFile) authorization() (string, error) {
	info, err := os.Stat(f.path)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.read != nil && os.SameFile(info, f.read) && info.ModTime().Equal(f.read.ModTime()) && info.Size() == f.read.Size() {
		return f.value, nil
	}
	text, err := os.ReadFile(f.path)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	f.read, f.value = info, "Bearer "+strings.TrimSpace(string(text))
	return f.value, nil
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (f *tokenFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	authorization, err := f.authorization()
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": authorization}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (f *tokenFile) RequireTransportSecurity() bool { return !f.open }
