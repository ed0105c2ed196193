package cuda

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/accel/cuda/ptxsim"
	"plumbline/internal/cases"
	"plumbline/verify/op"
)

// simulated is how much work a case may be: tiles of products in multiply-adds.
const simulated = 64 * 64 * 130

// simulators are the ops on simulated devices of all schedules, which must agree to the bit; texts stand in for modules.
func simulators(texts map[string]string, options ...ptxsim.Options) *Host {
	h := &Host{}
	for _, o := range options {
		c := NewContext(Simulator(o, 0))
		c.texts, c.listed = texts, true
		h.devices = append(h.devices, c)
	}
	return h
}

// approximate lists the ops into which ex2 or lg2 enter: both ends of their error are tried, too.
var approximate = map[string]bool{"f32.SwiGLU": true, "f32.SwiGLUBackward": true, "f32.GELU": true, "f32.Attention": true, "f32.AttentionBackward": true, "f32.HeadBatch": true, "f32.PolicyLoss": true}

// Every op holds its spec under rapid, in four schedules, with all checks of the simulator; by default in one of three cases that are drawn.
func TestOps(t *testing.T) {
	whole := op.OnDevice(simulators(nil, ptxsim.Schedules...), simulated)
	low := op.OnDevice(simulators(nil, ptxsim.Options{Approx: ptxsim.Lowest}), simulated)
	high := op.OnDevice(simulators(nil, ptxsim.Options{Approx: ptxsim.Highest}), simulated)
	for i, o := range whole {
		t.Run(o.Name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				if rapid.IntRange(1, cases.Every).Draw(t, "one in") > 1 {
					return
				}
				c := o.Case(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(0, 1000).Draw(t, "case"))
				r := o.CheckCase(c)
				if r.Failed == 0 && r.Compared() == 0 {
					t.SkipNow() // a matrix without rows
				}
				require.True(t, r.OK(), "%v: %v", c, r)
				if approximate[o.Name] {
					for _, end := range []op.Op{low[i], high[i]} {
						r := end.CheckCase(c)
						require.True(t, r.OK(), "%v, at an end of the error of ex2 and lg2: %v", c, r)
					}
				}
			})
		})
	}
}

// shapes of attention that must be tried whatever is drawn: each head size whole and with a tail, groups of queries, two chunks of keys, padding, and
// scores whose exponentials overflow unless the largest is taken off.
func attentionCases() (list []op.Case) {
	for i, size := range []int{64, 128, 256, 13, 77, 141} {
		list = append(list, op.Case{Family: op.Normal, Dims: []int{3, 3, 35, 2, 1, size, 1, 2 * (i / 3)}, Seed: uint64(size)})
	}
	return list
}

func TestAttentionSizes(t *testing.T) {
	h := simulators(nil, ptxsim.Schedules...)
	for _, c := range attentionCases() {
		r := op.AttentionBackward.On(op.Terms{Contract: op.Device}, h.Attention).CheckCase(c)
		require.True(t, r.OK(), "%v: %v", c, r)
	}
	names := slices.Clone(h.Launched())
	sort.Strings(names)
	for _, size := range []string{"64", "128", "256"} {
		for _, kernel := range []string{"attention_forward_", "attention_queries_", "attention_keys_"} {
			require.Contains(t, names, kernel+size)
		}
	}
}

// problem is what is tried with a faulty kernel: it says what is wrong, "" if nothing is.
type problem func(h *Host) string

func caseOf(i int, c op.Case) problem {
	return func(h *Host) string {
		if r := op.OnDevice(h, simulated)[i].CheckCase(c); r.Failed > 0 {
			return r.String()
		}
		return ""
	}
}

// exponential makes policy_loss an exponential and nothing else: with A = −1 and bounds that never hold, the loss is e^(logp − old).
func exponentialProblem(h *Host) (why string) {
	defer failed(&why)
	var x, zero, minus, one []float32
	for v := float32(-100); v < 88; v += 0.37 {
		x, zero, minus, one = append(x, v), append(zero, 0), append(minus, -1), append(one, 1)
	}
	loss, slope := make([]float32, len(x)), make([]float32, len(x))
	h.PolicyLoss(loss, slope, x, zero, nil, minus, one, 0, math.MaxFloat32, 0)
	for i, v := range x {
		want := math.Exp(float64(v))
		bound := (0x1p-22+4*0x1p-24)*want + 0x1p-148
		for _, got := range []float32{loss[i], slope[i]} {
			if !(math.Abs(float64(got)-want) <= bound) {
				return fmt.Sprintf("e^%v is %v, not %v", v, got, want)
			}
		}
	}
	return ""
}

// failed turns what a Host panics with into a sentence.
func failed(why *string) {
	switch p := recover().(type) {
	case nil:
	case *HostError:
		*why = p.Error()
	default:
		panic(p)
	}
}

// outsideProblem asks for ids that the vocabulary does not have: their log-probability is 0.
func outsideProblem(h *Host) (why string) {
	defer failed(&why)
	const vocab = 5
	logits, ids := []float32{1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5}, []int32{-1, vocab, 0}
	three := func() []float32 { return make([]float32, 3) }
	lp := three()
	h.Head(lp, three(), make([]float32, 15), logits, ids, three(), three(), vocab, 1)
	if lp[0] != 0 || lp[1] != 0 || !(math.Abs(float64(lp[2])+4.4519) < 1e-4) { // 1 − ln Σ e^k
		return fmt.Sprint("log-probabilities ", lp)
	}
	return ""
}

func TestSpecialProblems(t *testing.T) {
	for _, o := range [][]ptxsim.Options{ptxsim.Schedules, {{Approx: ptxsim.Lowest}}, {{Approx: ptxsim.Highest}}} {
		h := simulators(nil, o...)
		require.Empty(t, exponentialProblem(h))
		require.Empty(t, outsideProblem(h))
	}
}

// What goes wrong on a device reaches the report of a spec: the finding with kernel, block, thread, address and line.
func TestFindingsReachTheReport(t *testing.T) {
	text, err := PTX("pointwise")
	require.NoError(t, err)
	bad := strings.Replace(text, "setp.ge.s32", "setp.gt.s32", 1)
	require.NotEqual(t, text, bad)
	first := ""
	for _, o := range op.OnDevice(simulators(map[string]string{"pointwise": bad}, ptxsim.Options{}), simulated) {
		if moduleOf[o.Name] != "pointwise" {
			continue
		}
		if r := o.Check(1, 30, true); !r.OK() {
			first = r.String()
			break
		}
	}
	require.Regexp(t, `ptxsim: bounds: kernel \w+, block \(\d+,0,0\), thread \(\d+,0,0\), address 0x[0-9a-f]+, line \d+: .*`, first)
	other := strings.Replace(text, "fma.rn.f32", "fma.rz.f32", 1)
	r := op.SwiGLU.On(op.Terms{Contract: op.Device}, simulators(map[string]string{"pointwise": other}, ptxsim.Options{}).SwiGLU).Check(1, 3, true)
	require.Regexp(t, `module pointwise: .*line \d+.*unknown instruction fma.rz.f32`, r.String())
}

// device collects uploads, so that a test reads like the call that it makes.
type device struct {
	c   *Context
	err error
}

func up[T Number](d *device, x []T) Pointer {
	p, err := ToDevice(d.c, x)
	d.do(err)
	return p
}

func (d *device) do(err error) {
	if d.err == nil {
		d.err = err
	}
}
