package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/internal/bind"
	"plumbline/internal/rng"
	"plumbline/internal/train"
)

// tiny returns the embedded model under an adapter that is not zero.
func tiny(t *testing.T) (train.Policy, train.Tokenizer) {
	p, text, err := openTiny(Spec{})
	require.NoError(t, err)
	return p, text
}

func openTiny(Spec) (train.Policy, train.Tokenizer, error) {
	m, extra, err := bind.Open(bind.TinyGPTJ, 1)
	if err != nil {
		return nil, nil, err
	}
	text, err := bind.NewText(m)
	if err != nil {
		return nil, nil, err
	}
	o := bind.Options{Seed: 3, Extra: extra, Fingerprint: m.Fingerprint, PEFT: bind.AdapterConfig(bind.TinyGPTJ, train.LoRA{R: 2, Alpha: 4, Targets: []string{"q_proj"}})}
	if o.Adapter, err = bind.NewAdapter(m.Base.Config, 2, 4, []string{"q_proj"}, 1); err != nil {
		return nil, nil, err
	}
	p, err := bind.NewLanguage(m.Base, o)
	return p, text, err
}

// move changes the adapter as an update would.
func move(p train.Policy, seed uint64) {
	for k, x := range p.Params() {
		for i := range x.Data {
			x.Data[i] = float64(float32(x.Data[i] + .02*rng.New(seed, uint64(k)).Normal(uint64(i))))
		}
	}
}

var how = train.Sampling{Temperature: 1, TopP: 1, MaxNew: 5}

// rows are four prompts behind padding.
func rows(text train.Tokenizer) train.Batch {
	b := train.Batch{Rows: 4, Prompt: 6}
	for i := range 4 {
		ids := text.Encode("prompt")[:6]
		for j, id := range ids {
			b.IDs, b.Real = append(b.IDs, id), append(b.Real, j >= i)
		}
	}
	return b
}

func sampled(t *testing.T, p train.Policy, text train.Tokenizer, first int) (ids [][]int, logp [][]float64) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // a hang is a failure with a name
	defer cancel()
	ids, logp, err := p.Sample(ctx, rows(text), how, rng.New(7, 2), first, text.EOS(), nil)
	require.NoError(t, err)
	return ids, logp
}

func coordinate(t *testing.T, dir string, p train.Policy, text train.Tokenizer) *Coordinator {
	c, err := Open(context.Background(), Config{URL: Embedded, Listen: "127.0.0.1:0", Dir: dir, Policy: p, Text: text, Model: json.RawMessage(`{}`), Check: 50 * time.Millisecond, AckWait: 500 * time.Millisecond})
	require.NoError(t, err)
	return c
}

// hire starts a worker, which ends with the test; change makes another policy of the one it opens.
func hire(t *testing.T, c *Coordinator, change func(train.Policy) train.Policy) <-chan error {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	gone := make(chan struct{})
	w := Worker{URL: c.Address(), Open: func(Spec) (train.Policy, train.Tokenizer, error) {
		p, text := tiny(t)
		if change != nil {
			p = change(p)
		}
		return p, text, nil
	}}
	go func() { ended <- w.Work(ctx); close(gone) }()
	t.Cleanup(func() { cancel(); <-gone })
	return ended
}

func TestWorkersDrawWhatOneProcessDraws(t *testing.T) {
	p, text := tiny(t)
	c := coordinate(t, t.TempDir(), p, text)
	defer c.Close(false)
	hire(t, c, nil)
	hire(t, c, nil)
	for step := range 3 {
		move(p, uint64(step))
		want, wantLP := sampled(t, p, text, 4*step)
		got, gotLP := sampled(t, c.Policy(), text, 4*step)
		require.Equal(t, want, got)
		require.Equal(t, wantLP, gotLP)
	}
	require.Equal(t, 12, c.Counts().Accepted)
	require.Zero(t, c.Counts().Local)
}

// unmoved is a worker that loads the base and drops what it is handed: its masters are a copy that nothing reads.
type unmoved struct {
	train.Policy
	copies []train.Param
}

func (u unmoved) Params() []train.Param { return u.copies }

func forgetful(p train.Policy) train.Policy {
	u := unmoved{Policy: p}
	for _, x := range p.Params() {
		u.copies = append(u.copies, train.Param{Name: x.Name, Shape: x.Shape, Data: make([]float64, len(x.Data))})
	}
	return u
}

func TestCanaryCatchesMissingAdapter(t *testing.T) {
	p, text := tiny(t)
	c := coordinate(t, t.TempDir(), p, text)
	defer c.Close(false)
	done := make(chan struct{})
	move(p, 1)
	want, _ := sampled(t, p, text, 0)
	bad := hire(t, c, forgetful)
	var got [][]int
	go func() { defer close(done); got, _ = sampled(t, c.Policy(), text, 0) }()
	var refused *RefusedError
	require.ErrorAs(t, <-bad, &refused)
	require.Equal(t, WrongCanary, refused.Reason)
	require.Zero(t, c.Counts().Accepted)
	hire(t, c, nil)
	<-done
	require.Equal(t, want, got)
}

// The base without its adapter is caught at every policy, from updates that change a log-probability in its last digits to large ones:
// 210 of 210. The same adapter passes, so that it is the adapter that is seen.
func TestCanaryEveryTime(t *testing.T) {
	t.Parallel()
	p, text := tiny(t)
	q, _ := tiny(t)
	c := coordinate(t, t.TempDir(), p, text)
	defer c.Close(false)
	started := encodePolicy(p.Params())
	base, _ := tiny(t)
	for i := range base.Params() {
		clear(base.Params()[i].Data)
	}
	tries, updated := 0, 0
	for _, scale := range []float64{1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1} {
		for try := range 30 {
			require.NoError(t, decodePolicy(p.Params(), started))
			for k, x := range p.Params() {
				for i := range x.Data {
					if strings.Contains(x.Name, "lora_B") { // zero at the start of a run, so that this is what updates have made
						x.Data[i] = float64(float32(scale * rng.New(uint64(try), uint64(k)).Normal(uint64(i))))
						updated++
					}
				}
			}
			require.NoError(t, c.handOver(context.Background()))
			require.NoError(t, decodePolicy(q.Params(), encodePolicy(p.Params())))
			for policy, reason := range map[train.Policy]string{base: WrongCanary, q: ""} {
				song, err := sing(policy, c.entry.Canary)
				require.NoError(t, err)
				question, err := json.Marshal(joining{"w", c.entry.SHA256, policy.Variant(), policy.Fingerprint(), TokenizerPrint(text), song})
				require.NoError(t, err)
				require.Equal(t, reason, c.join(question).Reason, "scale %g, try %d", scale, try)
			}
			tries++
		}
	}
	require.Equal(t, tries, c.Counts().Rejected[WrongCanary])
	require.Equal(t, 210, tries)
	require.Positive(t, updated)
}

type otherBase struct{ train.Policy }

func (otherBase) Fingerprint() string { return "another" }

func TestOtherBaseIsRefused(t *testing.T) {
	p, text := tiny(t)
	c := coordinate(t, t.TempDir(), p, text)
	defer c.Close(false)
	require.NoError(t, c.handOver(context.Background()))
	require.NoError(t, c.fill(context.Background(), true))
	var refused *RefusedError
	require.ErrorAs(t, <-hire(t, c, func(p train.Policy) train.Policy { return otherBase{p} }), &refused)
	require.Equal(t, WrongBase, refused.Reason)
}

// What a worker is that is not the run's is said by name, and counted: other arithmetic, another base or tokenizer, an older policy.
func TestJoinRefuses(t *testing.T) {
	p, text := tiny(t)
	c := coordinate(t, t.TempDir(), p, text)
	defer c.Close(false)
	require.NoError(t, c.handOver(context.Background()))
	song, err := sing(p, c.entry.Canary)
	require.NoError(t, err)
	right := joining{"w", c.entry.SHA256, p.Variant(), p.Fingerprint(), TokenizerPrint(text), song}
	for reason, spoil := range map[string]func(*joining){
		"": func(*joining) {}, WrongVariant: func(j *joining) { j.Variant = "accel" }, WrongBase: func(j *joining) { j.Base = "x" }, WrongText: func(j *joining) { j.Tokenizer = TokenizerPrint(shifted{text}) },
		Stale: func(j *joining) { j.Policy = "x" }, WrongCanary: func(j *joining) { j.Canary = append([]uint64{song[0] ^ 1}, song[1:]...) },
	} {
		j := right
		spoil(&j)
		question, err := json.Marshal(j)
		require.NoError(t, err)
		require.Equal(t, reason, c.join(question).Reason)
		if reason != "" {
			require.Equal(t, 1, c.Counts().Rejected[reason])
		}
	}
	require.Equal(t, 1, c.Counts().Joined)
}

// shifted is a tokenizer whose ids are those of another one's next tokens.
type shifted struct{ train.Tokenizer }

func (s shifted) Encode(text string) []int {
	ids := s.Tokenizer.Encode(text)
	for i := range ids {
		ids[i]++
	}
	return ids
}

// What was accepted is on the disk: another coordinator draws nothing again, and a corrupted blob only its own samples.
func TestRebuiltFromFolder(t *testing.T) {
	p, text := tiny(t)
	dir := t.TempDir()
	c := coordinate(t, dir, p, text)
	hire(t, c, nil)
	want, _ := sampled(t, c.Policy(), text, 0)
	require.NoError(t, c.Close(false))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "jetstream")))

	c = coordinate(t, dir, p, text)
	got, _ := sampled(t, c.Policy(), text, 0) // without a worker
	require.Equal(t, want, got)
	require.Equal(t, 4, c.Counts().FromDisk)
	victim := ""
	for _, blob := range c.ledger.at {
		victim = filepath.Join(dir, "blobs", blob)
	}
	require.NoError(t, c.Close(false))
	data, err := os.ReadFile(victim)
	require.NoError(t, err)
	data[len(data)/2] ^= 1
	require.NoError(t, os.WriteFile(victim, data, 0o644))

	c = coordinate(t, dir, p, text)
	defer c.Close(false)
	hire(t, c, nil)
	got, _ = sampled(t, c.Policy(), text, 0)
	require.Equal(t, want, got)
	require.Equal(t, 3, c.Counts().FromDisk)
	require.Equal(t, 1, c.Counts().Accepted)
}

func TestRejected(t *testing.T) {
	p, text := tiny(t)
	c := coordinate(t, t.TempDir(), p, text)
	defer c.Close(false)
	require.NoError(t, c.handOver(context.Background()))
	old := c.entry.SHA256
	move(p, 1)
	hire(t, c, nil)
	sampled(t, c.Policy(), text, 0)
	var done string
	for id := range c.done {
		done = id
	}
	now := c.entry.SHA256
	for reason, s := range map[string]submission{
		Stale:         {Worker: "w", Ticket: c.ticket("w", old), Policy: old},
		UnknownPolicy: {Worker: "w", Ticket: c.ticket("w", "x"), Policy: "x"},
		NotAdmitted:   {Worker: "w", Ticket: c.ticket("w", old), Policy: now},
		UnknownTask:   {Worker: "w", Ticket: c.ticket("w", now), Policy: now, Task: "x"},
		Duplicate:     {Worker: "w", Ticket: c.ticket("w", now), Policy: now, Task: done},
	} {
		before := c.Counts()
		question, err := json.Marshal(s)
		require.NoError(t, err)
		require.Equal(t, reason, c.submit(question).Reason)
		require.Equal(t, before.Rejected[reason]+1, c.Counts().Rejected[reason], reason)
		require.Equal(t, before.Accepted, c.Counts().Accepted)
	}
	require.Equal(t, 1, c.Counts().Staleness)
}

func TestPlaintextOffLoopback(t *testing.T) {
	for address, lacks := range map[string]string{"nats://10.0.0.1:4222": "TLS", "nats://0.0.0.0:4222": "TLS", "tls://10.0.0.1:4222": "credentials", "http://10.0.0.1": "TLS", "nats://127.0.0.1:4222": "", "nats://[::1]:1": ""} {
		err := Security{}.allows(address)
		var insecure *InsecureError
		require.Equal(t, lacks != "", errors.As(err, &insecure), address)
		if lacks != "" {
			require.Equal(t, lacks, insecure.Lacks)
		}
		require.NoError(t, Security{Insecure: true}.allows(address))
	}
}
