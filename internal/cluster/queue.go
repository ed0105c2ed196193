package cluster

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// Embedded is the [Config.URL] of a NATS server in the process of the coordinator.
const Embedded = "embedded"

// Security says how connections are kept from others. Off loopback both TLS and credentials are needed.
type Security struct {
	Cert, Key   string // files of the coordinator's certificate
	CA          string // file of those who sign it; "": the system's
	Credentials string // file of NATS credentials, or of the seed of an nkey
	Insecure    bool   // plaintext and no credentials are accepted on every interface
}

// InsecureError says what is refused without [Security.Insecure].
type InsecureError struct{ Where, Lacks string }

func (e *InsecureError) Error() string {
	return fmt.Sprintf("%s is not on loopback and lacks %s: adapters and rollouts would be open to everyone on the way; --insecure accepts that", e.Where, e.Lacks)
}

// AddressError says that an address is none.
type AddressError struct{ Address, Want string }

func (e *AddressError) Error() string {
	return fmt.Sprintf("%q is no address: want %s", e.Address, e.Want)
}

// wantNATS are the addresses of a queue.
const wantNATS = "nats://HOST:PORT or tls://HOST:PORT"

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// allows refuses an address off loopback that is in plaintext or needs no credentials.
func (s Security) allows(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return &AddressError{address, wantNATS}
	}
	switch {
	case loopback(u.Hostname()) || s.Insecure:
		return nil
	case u.Scheme != "tls" && u.Scheme != "https" && u.Scheme != "wss":
		return &InsecureError{address, "TLS"}
	case s.Credentials == "" && u.Scheme != "https": // blobs have a token that comes over NATS
		return &InsecureError{address, "credentials"}
	}
	return nil
}

func (s Security) client() (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.CA != "" {
		text, err := os.ReadFile(s.CA)
		if err != nil {
			return nil, err
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s holds no certificate", s.CA)
		}
	}
	return t, nil
}

func (s Security) server() (*tls.Config, error) {
	if s.Cert == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(s.Cert, s.Key)
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}, err
}

// key returns the nkey of the credentials, nil if they are a file of NATS credentials or none.
func (s Security) key() (nkeys.KeyPair, error) {
	if s.Credentials == "" {
		return nil, nil
	}
	text, err := os.ReadFile(s.Credentials)
	if err != nil || strings.Contains(string(text), "BEGIN NATS USER JWT") {
		return nil, err
	}
	return nkeys.FromSeed([]byte(strings.TrimSpace(string(text))))
}

// ping is the time between two signs of life on a connection: one that is cut off is given up after three of them.
const ping = 15 * time.Second

// connect connects to a server, and again whenever the connection is lost.
func connect(address, name string, s Security) (*nats.Conn, error) {
	if scheme, _, _ := strings.Cut(address, "://"); scheme != "nats" && scheme != "tls" {
		return nil, &AddressError{address, wantNATS}
	}
	if err := s.allows(address); err != nil {
		return nil, err
	}
	options := []nats.Option{nats.Name(name), nats.MaxReconnects(-1), nats.ReconnectWait(100 * time.Millisecond), nats.RetryOnFailedConnect(true), nats.Timeout(5 * time.Second),
		nats.PingInterval(ping), nats.MaxPingsOutstanding(2)}
	if s.CA != "" || strings.HasPrefix(address, "tls:") {
		t, err := s.client()
		if err != nil {
			return nil, err
		}
		options = append(options, nats.Secure(t))
	}
	key, err := s.key()
	if err != nil {
		return nil, err
	}
	switch {
	case key != nil:
		public, err := key.PublicKey()
		if err != nil {
			return nil, err
		}
		options = append(options, nats.Nkey(public, key.Sign))
	case s.Credentials != "":
		options = append(options, nats.UserCredentials(s.Credentials))
	}
	return nats.Connect(address, options...)
}

// silent says why a connection is none.
func silent(conn *nats.Conn, address string) error {
	if why := conn.LastError(); why != nil {
		return fmt.Errorf("%s: %w", address, why)
	}
	return fmt.Errorf("%s: no NATS server answers", address)
}

// embed starts a server. Its store is emptied: the folder of the run is the truth.
func embed(listen, store string, s Security) (*server.Server, error) {
	host, text, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, err
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return nil, err
	}
	port = cmp.Or(port, server.RANDOM_PORT)
	t, err := s.server()
	if err != nil {
		return nil, err
	}
	scheme := "nats://"
	if t != nil {
		scheme = "tls://"
	}
	if err := s.allows(scheme + listen); err != nil {
		return nil, err
	}
	o := &server.Options{Host: host, Port: port, JetStream: true, StoreDir: store, NoSigs: true, NoLog: true, TLSConfig: t, TLS: t != nil, TLSTimeout: 5, PingInterval: ping, MaxPingsOut: 2}
	key, err := s.key()
	if err != nil {
		return nil, err
	}
	if key != nil {
		public, err := key.PublicKey()
		if err != nil {
			return nil, err
		}
		o.Nkeys = []*server.NkeyUser{{Nkey: public}}
	} else if s.Credentials != "" {
		return nil, fmt.Errorf("%s: the embedded server knows the seed of an nkey only; NATS credentials are for a cluster of one's own", s.Credentials)
	}
	if err := os.RemoveAll(store); err != nil {
		return nil, err
	}
	srv, err := server.NewServer(o)
	if err != nil {
		return nil, err
	}
	srv.Start()
	if !srv.ReadyForConnections(10 * time.Second) {
		srv.Shutdown()
		return nil, errors.New("the NATS server cannot listen on " + listen + ": is the port taken?")
	}
	return srv, nil
}
