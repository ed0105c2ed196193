package vram

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/internal/arch"
	"plumbline/verify/check"
)

// gptj is the configuration of systems.md, A.6.
func gptj(batch, seq int) Setup {
	return Setup{Model: arch.Find("gpt-j-6b"), Stack: HF, Int8: true, Rank: 16, Targets: []string{"q_proj", "v_proj"}, Batch: batch, Seq: seq}
}

func totalOf(t *testing.T, s Setup, p Phase) float64 {
	require.NoError(t, s.Validate())
	return New(s).Total(p).Bytes
}

// requireGB demands a figure of a table with as many digits as it has there.
func requireGB(t *testing.T, want string, bytes float64, what string) {
	t.Helper()
	digits := len(want) - strings.IndexByte(want, '.') - 1
	require.Equal(t, want, fmt.Sprintf("%.*f", digits, bytes/1e9), what)
}

// The table of systems.md, A.6.
func TestItemsOfGPTJ(t *testing.T) {
	p := New(gptj(4, 424))
	require.Equal(t, 5_637_144_576.0, p.Item(LinearWeights).Bytes)
	requireGB(t, "5.637", p.Item(LinearWeights).Bytes, "int8 linear weights")
	requireGB(t, "0.004", p.Item(Scales).Bytes, "row scales")
	requireGB(t, "0.827", p.Item(OtherWeights).Bytes, "embedding, head, norms, biases in fp16")
	requireGB(t, "6.47", p.Base(), "base")
	require.Equal(t, "6.02", fmt.Sprintf("%.2f", p.Base()/(1<<30)))
	requireGB(t, "0.78", p.Item(KVCache).Bytes, "KV cache")
	require.Equal(t, 458_752.0, p.Item(KVCache).Bytes/(4*424))
	requireGB(t, "1.03", p.Item(Logits).Bytes, "logits")
	require.Equal(t, 16*7_340_032.0, p.Item(AdapterWeights).Bytes+p.Item(Gradients).Bytes+p.Item(OptimiserState).Bytes, "16 bytes a parameter")

	for what, c := range map[string]struct {
		want string
		to   func(*Setup)
	}{
		"rest in fp32": {"7.30", func(s *Setup) { s.DType = "float32" }},
		"fp16 model":   {"12.10", func(s *Setup) { s.Int8 = false }},
		"fp32 model":   {"24.2", func(s *Setup) { s.Int8, s.DType = false, "float32" }},
	} {
		s := gptj(4, 424)
		c.to(&s)
		requireGB(t, c.want, New(s).Base(), what)
	}
	for batch, want := range map[int][2]string{1: {"2.81", "0.20"}, 2: {"5.63", "0.40"}, 4: {"11.26", "0.79"}} {
		s := gptj(batch, 424)
		requireGB(t, want[0], New(s).Item(Activations).Bytes, "activations")
		s.Checkpointing = true
		p := New(s)
		requireGB(t, want[1], p.Item(Activations).Bytes+p.Item(LiveBlock).Bytes, "activations with checkpointing")
	}
	for _, c := range []struct {
		targets string
		r       int
		want    float64
	}{ // the table of adapters
		{"q_proj,v_proj", 8, 3_670_016}, {"q_proj,v_proj", 16, 7_340_032}, {"q_proj,k_proj,v_proj", 8, 5_505_024}, {"q_proj,k_proj,v_proj", 16, 11_010_048},
		{"q_proj,k_proj,v_proj,out_proj", 8, 7_340_032}, {"q_proj,k_proj,v_proj,out_proj", 16, 14_680_064}, {"q_proj,v_proj,fc_in,fc_out", 4, 6_422_528},
		{"q_proj,v_proj,fc_in,fc_out", 8, 12_845_056}, {"q_proj,k_proj,v_proj,out_proj", 7, 6_422_528}, {"q_proj,v_proj", 14, 6_422_528}, {"q_proj,fc_in", 8, 6_422_528 * 8 / 8},
		{"fc_in,fc_out", 6, 6_881_280}, {"q_proj,k_proj,v_proj,out_proj,fc_in,fc_out", 4, 8_257_536},
	} {
		s := Setup{Model: arch.Find("gpt-j-6b"), Rank: c.r, Targets: strings.Split(c.targets, ",")}
		require.Equal(t, c.want, s.AdapterParameters(), "%s r=%d", c.targets, c.r)
	}
}

// The totals of systems.md, A.6: T = 424, the cache is not held.
func TestTotalsOfGPTJ(t *testing.T) {
	requireGB(t, "13.3", totalOf(t, gptj(2, 424), Update), "B=2")
	requireGB(t, "19.5", totalOf(t, gptj(4, 424), Update), "B=4")
	require.Equal(t, "18.1", fmt.Sprintf("%.1f", totalOf(t, gptj(4, 424), Update)/(1<<30)), "GiB")
	with := func(b int) Setup { s := gptj(b, 424); s.Checkpointing = true; return s }
	requireGB(t, "9.0", totalOf(t, with(4), Update), "B=4 with checkpointing")
	requireGB(t, "10.8", totalOf(t, with(8), Update), "B=8 with checkpointing")

	limit, err := ParseLimit("18GB")
	require.NoError(t, err)
	for b, fits := range map[int]bool{1: true, 2: true, 3: true, 4: false} {
		require.Equal(t, fits, totalOf(t, gptj(b, 424), Update) <= limit.Bytes, "B=%d", b)
	}
	for b, fits := range map[int]bool{1: true, 2: false} {
		s := gptj(b, 424)
		s.Copy = true
		require.Equal(t, fits, totalOf(t, s, Update) <= limit.Bytes, "second copy, B=%d", b)
		require.InDelta(t, 6.5e9, totalOf(t, s, Update)-totalOf(t, gptj(b, 424), Update), 0.05e9)
	}
}

// The table of performance.md, section 11: 2048 tokens, chunks of 256, caches of 16 sequences.
func TestPlumblineOfGPTJ(t *testing.T) {
	s := gptj(8, 256)
	s.Stack, s.Policy, s.Checkpointing, s.DType, s.Rollout = Plumbline, OnDevice, true, "bfloat16", 16
	p := New(s)
	requireGB(t, "5.64", p.Item(LinearWeights).Bytes+p.Item(Scales).Bytes, "linear")
	requireGB(t, "0.42", p.Item(OtherWeights).Bytes, "head and embedding")
	requireGB(t, "0.47", p.Item(Activations).Bytes, "checkpoints")
	requireGB(t, "0.05", p.Item(Logits).Bytes, "logits of a chunk")
	requireGB(t, "1.9", p.Item(KVCache).Bytes, "16 × 256 tokens")
	update := p.Total(Update).Bytes
	require.True(t, update > 7.7e9 && update < 8.2e9, "%g", update)
	s.Batch, s.Seq = 4, 512
	requireGB(t, "3.8", New(s).Item(KVCache).Bytes, "16 × 512 tokens")
	whole := New(s).Item(KVCache).Bytes
	s.KVInt8 = true
	require.Equal(t, whole/2+16*512*2*28*16*4, New(s).Item(KVCache).Bytes, "int8 is half, and a scale of 4 B for each head")
	s.MaxNew = 256
	require.Equal(t, 16*256*(6*4096+2*16384)*2.0, New(s).Item(PromptPass).Bytes, "one block of GPT-J: input, norm, q, k, v, attention, two of the MLP")
}

func TestFaults(t *testing.T) {
	planted, err := PlantAll(1)
	require.NoError(t, err)
	with := map[string]bool{}
	for _, p := range planted {
		require.True(t, p.Caught, "%s %s (%s): seen by %v", p.Check, p.Fault.ID, p.Fault.Title, p.By)
		require.Equal(t, p.Fault.ID, p.Named, "%s (%s)", p.Check, p.Fault.Title)
		with[p.Check] = true
	}
	for _, c := range Suite {
		require.True(t, with[c.Name], c.Name)
	}
	results, err := Suite.Run(healthy(), check.Selection{})
	require.NoError(t, err)
	for _, r := range results {
		require.Equal(t, check.Pass, r.Verdict, "%s: %s", r.Check, r.Reason)
	}
	require.Len(t, results, 4, "all but the device map")
}

func TestNoFalseAlarms(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for range 2000 {
		in := Healthy(r)
		require.NoError(t, in.Plan.Setup.Validate())
		results, err := Suite.Run(in, check.Selection{})
		require.NoError(t, err)
		require.Empty(t, Alarm(in, results))
	}
}

func drawSetup(t *rapid.T) Setup {
	m := rapid.SampledFrom(arch.Models).Draw(t, "model")
	s := Setup{Model: &m, Stack: rapid.SampledFrom(Stacks).Draw(t, "stack"), DType: rapid.SampledFrom([]string{"", "bfloat16", "float32"}).Draw(t, "dtype"),
		Batch: rapid.IntRange(1, 64).Draw(t, "batch"), Seq: rapid.IntRange(1, 4096).Draw(t, "seq"), Checkpointing: rapid.Bool().Draw(t, "checkpointing"),
		Optimiser: rapid.SampledFrom(append([]string{""}, Optimisers...)).Draw(t, "optimiser"), Copy: rapid.Bool().Draw(t, "copy"), KVInt8: rapid.Bool().Draw(t, "kv"),
		Chunk: rapid.SampledFrom([]int{0, 1, 256}).Draw(t, "chunk"), Rollout: rapid.IntRange(0, 64).Draw(t, "rollout")}
	s.MaxNew = rapid.IntRange(0, s.Seq).Draw(t, "new")
	if rapid.Bool().Draw(t, "adapter") {
		s.Rank, s.Targets, s.Int8 = rapid.IntRange(1, 64).Draw(t, "r"), s.targetNames()[:1], rapid.Bool().Draw(t, "int8")
	} else if s.Stack == Plumbline {
		s.Copy = false
	}
	if s.Stack == HF {
		if s.DType == "float32" && !s.Int8 && !s.KVInt8 {
			s.Autocast = rapid.SampledFrom(append([]string{""}, Autocasts...)).Draw(t, "autocast")
		}
		if rapid.Bool().Draw(t, "critic") {
			s.Critic, s.Reward = s.Model, &arch.Models[rapid.IntRange(0, len(arch.Models)-1).Draw(t, "reward")]
		}
	}
	return s
}

// Laws of every plan: items are finite and within their range, a total is the sum of its items, more of anything never
// needs less, and every piece of advice saves what it says.
func TestLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSetup(t)
		require.NoError(t, s.Validate())
		p := New(s)
		for _, phase := range Phases {
			var sum float64
			for _, i := range p.Items {
				require.True(t, i.Low <= i.Bytes && i.Bytes <= i.High && i.Low >= 0 && !math.IsInf(i.High, 0), "%+v", i)
				require.NotEmpty(t, i.Formula)
				require.True(t, i.In[Update] || i.In[Rollout])
				if i.In[phase] {
					sum += i.Bytes
				}
			}
			require.InEpsilon(t, sum, p.Total(phase).Bytes, 1e-12)
			for what, change := range map[string]func(*Setup){
				"batch": func(s *Setup) { s.Batch++ }, "seq": func(s *Setup) { s.Seq++ }, "copy": func(s *Setup) { s.Copy = true },
				"rank": func(s *Setup) {
					if s.Rank > 0 {
						s.Rank++
					}
				},
				"no checkpointing": func(s *Setup) {
					if s.Stack == HF || s.Model.Layers > 2 {
						s.Checkpointing = false
					}
				},
			} {
				more := s
				change(&more)
				require.GreaterOrEqual(t, New(more).Total(phase).Bytes, p.Total(phase).Bytes, what)
			}
		}
		limit := Limit{"", 8e9, 8e9}
		_, before := p.Peak()
		last := math.Inf(1)
		for _, a := range p.Advise(limit) {
			require.Positive(t, a.Saved)
			require.LessOrEqual(t, a.Saved, last, "ranked")
			require.InDelta(t, before.Bytes-a.Saved, a.After.Bytes, 1)
			if s.Int8 {
				require.NotContains(t, a.Flag, "device-map")
			}
			last = a.Saved
		}
	})
}

// The advice for the run that does not fit names checkpointing first and the largest batch that fits.
func TestAdvice(t *testing.T) {
	limit, err := ParseLimit("18GB")
	require.NoError(t, err)
	s := gptj(4, 424)
	s.MaxNew = 40
	list := New(s).Advise(limit)
	require.Equal(t, "--checkpointing", list[0].Flag)
	require.InDelta(t, 10.47e9, list[0].Saved, 0.01e9)
	flags := map[string]Advice{}
	for _, a := range list {
		flags[a.Flag] = a
	}
	require.Contains(t, flags, "--batch 3")
	require.LessOrEqual(t, flags["--batch 3"].After.Bytes, 18e9)
	require.Contains(t, flags, "--max-new-tokens 20 --seq 404")
	require.NotEmpty(t, s.Conflict())

	s.Int8, s.MaxNew = false, 0
	flags = map[string]Advice{}
	for _, a := range New(s).Advise(limit) {
		flags[a.Flag] = a
	}
	require.Contains(t, flags, "--device-map auto")
	require.Contains(t, flags, "--int8")
	require.Empty(t, s.Conflict())
}

func TestLimit(t *testing.T) {
	for text, want := range map[string][2]float64{"18GB": {18e9, 18 << 30}, "18GiB": {18 << 30, 18 << 30}, "17166MiB": {17166 << 20, 17166 << 20}, "1.5 TB": {1.5e12, 1.5 * (1 << 40)}, "16000000000B": {16e9, 16e9}} {
		l, err := ParseLimit(text)
		require.NoError(t, err, text)
		require.Equal(t, want, [2]float64{l.Bytes, l.Hard}, text)
	}
	for _, text := range []string{"", "18", "GB", "-1GB", "0GB", "NaNGB", "InfGB", "18gb", "18Gb", "18G", "18 GB RAM", "1e99GB", "18MBGB", "1B", "0x", "١٨GB"} {
		_, err := ParseLimit(text)
		require.ErrorContains(t, err, "--limit", text)
	}
	for peak, want := range map[float64]check.Verdict{17166: check.Pass, 17167: check.Warn, 18432: check.Warn, 18433: check.Fail} {
		in := healthy()
		in.Measured.Devices[0].Peak = peak * (1 << 20)
		results, err := Suite.Run(in, check.Selection{Select: []string{"measured/peak"}})
		require.NoError(t, err)
		require.Equal(t, want, results[0].Verdict, "%g MiB", peak)
	}
}

// A plan that fits warns where it leaves less than 5 % free, where the upper end of the estimates does not fit, and where it
// fits by one reading of GB only.
func TestNarrowLimits(t *testing.T) {
	p := New(gptj(2, 424))
	total := p.Total(Update)
	judge := func(limit Limit) check.Result {
		results, err := Suite.Run(&Input{Plan: p, Limit: limit}, check.Selection{Select: []string{"plan/update"}})
		require.NoError(t, err)
		return results[0]
	}
	one := func(bytes float64) Limit { return Limit{"x", bytes, bytes} }
	require.Equal(t, check.Pass, judge(one(total.High*1.06)).Verdict)
	r := judge(one(total.Bytes * 1.04))
	require.Equal(t, check.Warn, r.Verdict)
	require.Contains(t, r.Reason, "less than 5 %")
	r = judge(one((total.High + total.Bytes*1.06) / 2))
	require.Equal(t, check.Warn, r.Verdict)
	require.Contains(t, r.Reason, "upper end")
	r = judge(Limit{"x", total.Bytes * 0.99, total.Bytes * 1.05})
	require.Equal(t, check.Warn, r.Verdict)
	require.Contains(t, r.Reason, "read as GiB")
	require.Equal(t, check.Fail, judge(one(total.Bytes*0.999)).Verdict)
}

func TestRefusedSetups(t *testing.T) {
	for fragment, to := range map[string]func(*Setup){
		"--model":                 func(s *Setup) { s.Model = nil },
		"--batch 0":               func(s *Setup) { s.Batch = 0 },
		"--seq -1":                func(s *Setup) { s.Seq = -1 },
		"--seq":                   func(s *Setup) { s.Seq = maxSeq + 1 },
		"--max-new-tokens":        func(s *Setup) { s.MaxNew = 425 },
		"--stack":                 func(s *Setup) { s.Stack = "vllm" },
		"--dtype":                 func(s *Setup) { s.DType = "int4" },
		"--optimizer":             func(s *Setup) { s.Optimiser = "lion" },
		"--attention":             func(s *Setup) { s.Attention = "flash" },
		"GPT-J has none":          func(s *Setup) { s.Attention = "sdpa" },
		"cannot be trained":       func(s *Setup) { s.Rank = 0 },
		"needs --lora-r":          func(s *Setup) { s.Rank, s.Int8 = 0, false },
		"needs --targets":         func(s *Setup) { s.Targets = nil },
		`did you mean "out_proj"`: func(s *Setup) { s.Targets = []string{"o_proj"} },
	} {
		s := gptj(4, 424)
		to(&s)
		require.ErrorContains(t, s.Validate(), fragment)
		require.ErrorAs(t, s.Validate(), new(*UsageError))
	}
}
