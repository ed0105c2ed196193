//go:build slow && linux

package model

import (
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"plumbline/reference/ad"
	"plumbline/reference/nn"

	"github.com/stretchr/testify/require"
)

// smolLM2 is SmolLM2-135M, as its config.json has it.
func smolLM2() Config {
	return Config{Kind: Llama, Vocab: 49152, Hidden: 576, Layers: 30, Heads: 9, KVHeads: 3, HeadDim: 64, Intermediate: 1536,
		MaxPositions: 8192, Eps: 1e-5, Activation: "silu", Tied: true, RoPE: nn.RoPE{Dim: 64, Theta: 100000}}
}

// spent returns the processor time of this process so far; other processes on the machine do not count.
func spent(t *testing.T) time.Duration {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// peak returns the largest resident size of this process so far, in bytes.
func peak(t *testing.T) int {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip("no /proc")
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			require.NoError(t, err)
			return kib << 10
		}
	}
	t.Skip("no VmHWM")
	return 0
}

// A model of the size that is fine-tuned here runs in the reference: 64 tokens of SmolLM2-135M in 20 s of
// one core and 3 GB. The weights are random, which costs the same.
func TestSmolLM2Size(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	c, r := smolLM2(), rand.New(rand.NewPCG(1, 2))
	total := 0
	m, err := New(c, func(_ string, shape ...int) ([]float64, error) {
		x := make([]float64, elements(shape))
		total += len(x)
		for i := range x {
			x[i] = (r.Float64() - 0.5) * 0.2
		}
		return x, nil
	})
	require.NoError(t, err)
	require.Equal(t, 134515008, total, "the parameters of the released model")

	in := Input{Batch: 1, Time: 64, IDs: make([]int, 64)}
	for i := range in.IDs {
		in.IDs[i] = r.IntN(c.Vocab)
	}
	start := spent(t)
	var tape ad.Tape
	n := m.On(&tape, Trainable{})
	full := n.Logits(n.Forward(in).Hidden)
	took := spent(t) - start
	t.Logf("forward of 64 tokens: %v", took)
	require.Less(t, took, 20*time.Second)

	start = spent(t)
	cache := new(Cache)
	prompt, next := in, in
	prompt.Time, prompt.IDs, prompt.Cache = 63, in.IDs[:63], cache
	next.Time, next.IDs, next.Cache = 1, in.IDs[63:], cache
	n.Forward(prompt)
	t.Logf("63 tokens into the cache: %v", spent(t)-start)
	start = spent(t)
	last := n.Logits(n.Forward(next).Hidden)
	t.Logf("one more: %v", spent(t)-start)
	require.Equal(t, full.Data()[63*c.Vocab:], last.Data())

	start = spent(t)
	var adapted ad.Tape
	a := Adapter{}
	for _, l := range c.Linears() {
		if strings.HasSuffix(l.Name, "q_proj") || strings.HasSuffix(l.Name, "v_proj") {
			a[l.Name] = LoRA{Rank: 8, A: make([]float64, 8*l.Shape[1]), B: make([]float64, 8*l.Shape[0]), Scale: 1}
		}
	}
	n = m.On(&adapted, Trainable{Adapter: a, LoRA: true})
	ad.Backward(n.MeanLogProb(in), []float64{1})
	t.Logf("forward and backward of the LoRA factors: %v", spent(t)-start)

	debug.FreeOSMemory()
	t.Logf("peak %.2f GB", float64(peak(t))/1e9)
	require.Less(t, peak(t), 3_000_000_000)
}
