package bind_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/accel/cuda"
	"plumbline/accel/cuda/ptxsim"
	"plumbline/accel/lora"
	"plumbline/internal/arch"
	"plumbline/internal/bind"
	"plumbline/internal/cases"
	"plumbline/internal/rng"
	"plumbline/internal/train"
)

// TestOnDevice holds the kernels of a device, simulated, against the reference on the same codes: log-probabilities, entropies, values, and the gradients
// of every factor and of the value head.
func TestOnDevice(t *testing.T) {
	for i, name := range []string{bind.Tiny, bind.TinyGPTJInit} {
		if i%cases.Every != 0 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			base, o := accelOptions(t, name)
			l, err := bind.NewLockstepOn(base, cuda.Simulator(ptxsim.Schedules[i], 0), o)
			require.NoError(t, err)
			require.Equal(t, "reference in lockstep with sim w8a16", l.Variant())
			report, err := follow(t, l, base.Config.Vocab, 7)
			require.NoError(t, err, report)
			for _, kind := range []string{"log-probabilities", "reference log-probabilities", "entropies", "values", "gradients of A", "gradients of B", "gradients of the value head"} {
				require.Contains(t, report, kind)
			}
		})
	}
}

// TestOnDeviceParts plants an update that is scaled by a thousandth more on the device.
func TestOnDeviceParts(t *testing.T) {
	base, o := accelOptions(t, bind.Tiny)
	l, err := bind.NewLockstepOn(base, cuda.Simulator(ptxsim.Options{}, 0), o)
	require.NoError(t, err)
	_, bad := accelOptions(t, bind.Tiny)
	for name, f := range bad.Adapter {
		f.Scale *= 1.5
		bad.Adapter[name] = f
	}
	run, err := bind.NewOnDevice(base, cuda.Simulator(ptxsim.Options{}, 0), bad)
	require.NoError(t, err)
	bind.ReplaceRun(l, run)
	report, err := follow(t, l, base.Config.Vocab, 7)
	var parted bind.PartedError
	require.ErrorAs(t, err, &parted, report)
}

// TestOnDeviceSamples demands that a row draws alone what it draws beside others, that Score gives what was drawn its log-probability, and that
// nothing is left on the device.
func TestOnDeviceSamples(t *testing.T) {
	base, o := accelOptions(t, bind.Tiny)
	d := cuda.Simulator(ptxsim.Options{}, 0)
	p, err := bind.NewOnDevice(base, d, o)
	require.NoError(t, err)
	free, total, err := d.Memory()
	require.NoError(t, err)
	b := accelBatch(base.Config.Vocab, 5)
	prompts := train.Batch{Rows: 3, Prompt: 4}
	for r := range 3 {
		prompts.IDs, prompts.Real = append(prompts.IDs, b.IDs[9*r:9*r+4]...), append(prompts.Real, b.Real[9*r:9*r+4]...)
	}
	how := train.Sampling{Temperature: 1, TopP: 0.95, MaxNew: 5, Raw: true}
	ids, lp, err := p.Sample(context.Background(), prompts, how, rng.New(5, 1), 40, base.Text.EOS(), nil)
	require.NoError(t, err)
	for r := range 3 {
		one := train.Batch{Rows: 1, Prompt: 4, IDs: prompts.IDs[4*r : 4*r+4 : 4*r+4], Real: prompts.Real[4*r : 4*r+4 : 4*r+4]}
		alone, lpAlone, err := p.Sample(context.Background(), one, how, rng.New(5, 1), 40+r, base.Text.EOS(), nil)
		require.NoError(t, err)
		require.Equal(t, ids[r], alone[0])
		require.Equal(t, lp[r], lpAlone[0])
		one.Response = len(ids[r])
		one.IDs = append(one.IDs, ids[r]...)
		for range ids[r] {
			one.Real = append(one.Real, true)
		}
		s, err := p.Score(one)
		require.NoError(t, err)
		for j, v := range s.LogProbs {
			require.InDelta(t, lp[r][j], v, 1e-6, "row %d, token %d: scored and drawn", r, j)
		}
	}
	now, _, err := d.Memory()
	require.NoError(t, err)
	require.Equal(t, free, now, "what a pass took is given back")
	table, width := p.Embeddings()
	require.Len(t, table, base.Config.Vocab*width)
	require.NoError(t, p.Close())
	now, _, err = d.Memory()
	require.NoError(t, err)
	require.Equal(t, total, now)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, _, err = p.Sample(ctx, prompts, how, rng.New(5, 1), 0, 0, nil)
	require.Error(t, err)
}

func TestOnDeviceRefuses(t *testing.T) {
	base, o := accelOptions(t, bind.Tiny)
	d := cuda.Simulator(ptxsim.Options{}, 0)
	bare := o
	bare.Adapter = nil
	_, err := bind.NewOnDevice(base, d, bare)
	require.ErrorContains(t, err, "lora.r=8")
	small, err := bind.NewOnDevice(base, cuda.Simulator(ptxsim.Options{}, 1<<16), o)
	require.ErrorContains(t, err, "no memory for", "%v", small)
	large := *base
	large.Config = arch.Config{Type: "llama", Vocab: 49152, Layers: 30, Heads: 9, KVHeads: 3, HeadDim: 64, Hidden: 576, Inner: 1536, Positions: 2048, Eps: 1e-5, Activation: "silu"}
	_, err = bind.NewOnDevice(&large, d, o)
	var tooLarge bind.TooLargeError
	require.ErrorAs(t, err, &tooLarge)
	require.ErrorContains(t, err, "for a model of 134 million weights would take about 56 s")
	p, err := bind.NewOnDevice(base, d, o)
	require.NoError(t, err)
	b := accelBatch(base.Config.Vocab, 1)
	b.IDs[4] = base.Config.Vocab
	_, err = p.Score(b)
	require.ErrorContains(t, err, "vocabulary")
	require.Equal(t, "sim "+lora.W8A16.String(), p.Variant())
}
