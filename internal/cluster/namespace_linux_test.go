//go:build slow

package cluster

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// namespace is a network of one's own, joined to this one by a pair of interfaces.
type namespace struct {
	name, link string
	here       string // address of this side
}

// newNamespace makes the i-th of this process; why says what does not permit it.
func newNamespace(t *testing.T, i int) (_ *namespace, why string) {
	n := &namespace{name: fmt.Sprintf("plumbline-%d-%d", os.Getpid(), i), link: fmt.Sprintf("pl%dh%d", os.Getpid()%100000, i), here: fmt.Sprintf("10.231.%d.1", 4*os.Getpid()%200+i)}
	peer := fmt.Sprintf("pl%dw%d", os.Getpid()%100000, i)
	there := strings.TrimSuffix(n.here, "1") + "2"
	t.Cleanup(func() {
		exec.Command("ip", "link", "del", n.link).Run()
		exec.Command("ip", "netns", "del", n.name).Run()
	})
	for _, line := range []string{"netns add " + n.name, "link add " + n.link + " type veth peer name " + peer, "link set " + peer + " netns " + n.name, "addr add " + n.here + "/24 dev " + n.link, "link set " + n.link + " up",
		"-n " + n.name + " addr add " + there + "/24 dev " + peer, "-n " + n.name + " link set " + peer + " up", "-n " + n.name + " link set lo up"} {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return nil, fmt.Sprintf("ip %s: %v %s", line, err, out)
		}
	}
	return n, ""
}

func (n *namespace) set(t *testing.T, state string) {
	out, err := exec.Command("ip", "link", "set", n.link, state).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// in is the command before one that runs there.
func (n *namespace) in() []string { return []string{"ip", "netns", "exec", n.name} }

// TestPartition cuts a worker off by taking down the link to its network. Beside another worker its task goes to that one; alone, it is
// waited for. When the link is back it draws on. Every step has the samples of one process, and no worker ends.
func TestPartition(t *testing.T) {
	n, why := newNamespace(t, 0)
	if n == nil {
		lacking(t, "netns", why)
	}
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	const steps = 40
	begin := func() *process {
		return start(t, "coordinator", []string{"CLUSTER_URL=embedded", "CLUSTER_LISTEN=0.0.0.0:0", "CLUSTER_DIR=" + filepath.Join(dir, "cluster"), "CLUSTER_OUT=" + out, fmt.Sprint("CLUSTER_STEPS=", steps)})
	}
	at := func(k int) func() bool {
		return func() bool { list, err := readSteps(out); require.NoError(t, err); return len(list) >= k }
	}
	c := begin()
	c.says(t, "ready at")
	u, err := url.Parse(strings.Fields(c.text())[2])
	require.NoError(t, err)
	address := func(host string) string { return "CLUSTER_URL=nats://" + net.JoinHostPort(host, u.Port()) }
	far := start(t, "worker", []string{address(n.here)}, n.in()...)
	require.Eventually(t, at(3), time.Minute, 10*time.Millisecond)

	n.set(t, "down") // it is the only one: nothing moves
	held, err := readSteps(out)
	require.NoError(t, err)
	time.Sleep(3 * time.Second)
	now, err := readSteps(out)
	require.NoError(t, err)
	require.LessOrEqual(t, len(now), len(held)+1)
	near := start(t, "worker", []string{address("127.0.0.1")})
	require.Eventually(t, at(len(now)+5), time.Minute, 10*time.Millisecond)
	near.kill()
	before, err := readSteps(out)
	require.NoError(t, err)
	n.set(t, "up")
	require.Eventually(t, at(len(before)+3), 2*time.Minute, 10*time.Millisecond, "the worker that was cut off: %s", far.text())
	c.ends(t)
	require.NotContains(t, c.text(), "ended")
	got, err := readSteps(out)
	require.NoError(t, err)
	require.Equal(t, expected(t, steps), got)
	far.says(t, "the run has ended")
}
