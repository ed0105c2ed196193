package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"plumbline/internal/train"
)

// secured returns a certificate for loopback that signs itself, and an nkey.
func secured(t *testing.T) Security {
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "plumbline"}, NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	user, err := nkeys.CreateUser()
	require.NoError(t, err)
	seed, err := user.Seed()
	require.NoError(t, err)
	write := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, text, 0o600))
		return path
	}
	cert := write("cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return Security{Cert: cert, Key: write("key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})), CA: cert, Credentials: write("seed", seed)}
}

// Under TLS and credentials a worker that has both draws; one without the authority, the credentials or TLS gets nothing.
func TestSecured(t *testing.T) {
	t.Parallel()
	p, text := tiny(t)
	s := secured(t)
	c, err := Open(context.Background(), Config{URL: Embedded, Listen: "127.0.0.1:0", Dir: t.TempDir(), Policy: p, Text: text, Model: json.RawMessage(`{}`), Security: s, Check: 50 * time.Millisecond})
	require.NoError(t, err)
	defer c.Close(false)
	require.Contains(t, c.Address(), "tls://")
	require.Contains(t, c.spec.Blobs, "https://")
	open := func(Spec) (train.Policy, train.Tokenizer, error) {
		p, text := tiny(t)
		return p, text, nil
	}
	other := secured(t)
	for lacks, security := range map[string]Security{
		"authority":   {Credentials: s.Credentials},
		"credentials": {CA: s.CA},
		"this key":    {CA: s.CA, Credentials: other.Credentials},
		"this CA":     {CA: other.CA, Credentials: s.Credentials},
	} {
		patience := time.Second
		if lacks == "this key" { // the server says so, and then again: however long that takes
			patience = time.Minute
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		w := Worker{URL: c.Address(), Security: security, Open: open}
		err := w.Work(ctx)
		require.Error(t, err, lacks)
		if lacks == "this key" {
			require.ErrorContains(t, err, "Authorization Violation")
		}
		cancel()
		require.Zero(t, c.Counts().Joined, lacks)
	}
	ctx, cancel := context.WithCancel(context.Background())
	gone := make(chan struct{})
	w := Worker{URL: c.Address(), Security: Security{CA: s.CA, Credentials: s.Credentials}, Open: open}
	go func() { w.Work(ctx); close(gone) }()
	defer func() { cancel(); <-gone }()
	want, _ := sampled(t, p, text, 0)
	got, _ := sampled(t, c.Policy(), text, 0)
	require.Equal(t, want, got)
}

// Workers that share a folder with the coordinator need no HTTP.
func TestSharedFolder(t *testing.T) {
	p, text := tiny(t)
	shared := t.TempDir()
	c, err := Open(context.Background(), Config{URL: Embedded, Listen: "127.0.0.1:0", Blobs: shared, Dir: t.TempDir(), Policy: p, Text: text, Model: json.RawMessage(`{}`), Check: 50 * time.Millisecond})
	require.NoError(t, err)
	defer c.Close(false)
	hire(t, c, nil)
	want, _ := sampled(t, p, text, 0)
	got, _ := sampled(t, c.Policy(), text, 0)
	require.Equal(t, want, got)
	list, err := os.ReadDir(shared)
	require.NoError(t, err)
	require.NotEmpty(t, list)
}

// A coordinator of its own process uses a cluster of others by URL.
func TestClusterOfOthers(t *testing.T) {
	srv, err := embed("127.0.0.1:0", t.TempDir(), Security{})
	require.NoError(t, err)
	defer srv.Shutdown()
	p, text := tiny(t)
	c, err := Open(context.Background(), Config{URL: srv.ClientURL(), Dir: t.TempDir(), Policy: p, Text: text, Model: json.RawMessage(`{}`), Check: 50 * time.Millisecond})
	require.NoError(t, err)
	defer c.Close(false)
	require.Equal(t, srv.ClientURL(), c.Address())
	hire(t, c, nil)
	want, _ := sampled(t, p, text, 0)
	got, _ := sampled(t, c.Policy(), text, 0)
	require.Equal(t, want, got)
}
