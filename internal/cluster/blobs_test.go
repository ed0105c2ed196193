package cluster

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReachable(t *testing.T) {
	for _, c := range [][3]string{
		{"http://0.0.0.0:81", "nats://head:4222", "http://head:81"}, {"https://[::]:81", "tls://10.1.2.3:4222", "https://10.1.2.3:81"}, {"http://[::]:81", "nats://[fe80::1]:4222", "http://[fe80::1]:81"},
		{"http://10.0.0.9:81", "nats://head:4222", "http://10.0.0.9:81"}, {"/shared/blobs", "nats://head:4222", "/shared/blobs"}, {"http://0.0.0.0:81", "", "http://0.0.0.0:81"},
	} {
		require.Equal(t, c[2], reachable(c[0], c[1]))
	}
}
