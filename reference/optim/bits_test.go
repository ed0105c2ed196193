package optim

import (
	"encoding/binary"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"hash/fnv"
	"math"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// bitCases computes with every exported function of the package, by name.
var bitCases = map[string]func() []float64{
	"AdamWDefaults": func() []float64 {
		o := AdamWDefaults(1e-3)
		return []float64{o.LR, o.Beta1, o.Beta2, o.Eps, o.WeightDecay}
	},
	"NewState": func() []float64 { s := NewState(3); return append(s.M, s.V...) },
	"Adam.Step": func() (out []float64) {
		for _, form := range []Form{PyTorch, TensorFlow1} {
			for _, o := range []Adam{{WeightDecay: .01}, {WeightDecay: .01, Coupled: true}, {AMSGrad: true, Eps: 1e-5}} {
				o.LR, o.Beta1, o.Beta2, o.Form = 3e-4, .9, .999, form
				p, g := bitsFill(1, 37), bitsFill(2, 37)
				s := NewState(37)
				for range 5 {
					o.Step(p, g, s)
				}
				out = append(append(append(append(out, p...), s.M...), s.V...), s.VMax...)
			}
		}
		return out
	},
	"NewState8bit": func() []float64 {
		s := NewState8bit(3)
		return []float64{float64(s.M.Codes[2]), float64(s.V.AbsMax[0])}
	},
	"Adam.Step8bit": func() (out []float64) {
		o, s := AdamWDefaults(3e-4), NewState8bit(300)
		p, g := bitsFill(1, 300), bitsFill(2, 300)
		for range 5 {
			o.Step8bit(p, g, s)
		}
		for i := range s.M.Codes {
			out = append(out, p[i], float64(s.M.Codes[i]), float64(s.V.Codes[i]))
		}
		return append(out, float64(s.M.AbsMax[1]), float64(s.V.AbsMax[1]))
	},
	"ClipGlobalNorm": func() []float64 {
		g := [][]float64{bitsFill(1, 19), bitsFill(2, 23)}
		norm := ClipGlobalNorm(g, .7)
		return append(append(g[0], g[1]...), norm)
	},
	"SGD": func() []float64 { p := bitsFill(1, 31); SGD(p, bitsFill(2, 31), 1e-2/3); return p },
	"Schedule.At": func() (out []float64) {
		for _, decay := range []Decay{Constant, Linear, Cosine} {
			s := Schedule{Decay: decay, LR: 2e-6, MinLR: 1e-7, Warmup: 5, Total: 640, Rebound: true}
			for step := range 1500 {
				out = append(out, s.At(step))
			}
		}
		return out
	},
}

func bitsFill(salt, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = float64((i+salt)*7919%1009-504) / 331 // one rounding, full mantissa
	}
	return x
}

// TestBits: every exported function has the same bits under GOAMD64=v1 and v3, with and without the tag purego, on one
// thread and on eight. The digests were printed by this test under GOAMD64=v1, Go 1.26; they guard against change, that the
// numbers are right is for the other tests. math.Pow is part of Adam, and its bits of this Go.
func TestBits(t *testing.T) {
	want := map[string]string{
		"Adam.Step":      "dc9605dea5508447",
		"Adam.Step8bit":  "5078ed3548c3a050",
		"AdamWDefaults":  "a0c2918c3bae99f9",
		"ClipGlobalNorm": "f6baa60a56549b45",
		"NewState":       "a09d945a1cd8d6e5",
		"NewState8bit":   "88201fb960ff6465",
		"SGD":            "93cd5b727fa2c6d4",
		"Schedule.At":    "1332500cf44e5c68",
	}
	got := map[string]string{}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	for name, f := range bitCases {
		x := f()
		h := fnv.New64a()
		for _, v := range x {
			require.False(t, math.IsNaN(v), name)
			h.Write(binary.LittleEndian.AppendUint64(nil, math.Float64bits(v)))
		}
		got[name] = fmt.Sprintf("%016x", h.Sum64())

		var all [8][]float64
		var group sync.WaitGroup
		for i := range all {
			group.Go(func() { all[i] = f() })
		}
		group.Wait()
		for _, y := range all {
			require.Equal(t, x, y, "%s on eight threads", name)
		}
	}
	require.Equal(t, want, got)
}

// TestBitsCoversAll: no exported function is left out of bitCases.
func TestBitsCoversAll(t *testing.T) {
	names, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Name.IsExported() {
				name := f.Name.Name
				if f.Recv != nil {
					name = fmt.Sprint(f.Recv.List[0].Type) + "." + name
				}
				require.Contains(t, bitCases, name)
			}
		}
	}
}

// TestCosPi: within four units in the last place of math.Cos up to ½, exact where a schedule has its ends and its middle.
func TestCosPi(t *testing.T) {
	for x, want := range map[float64]float64{0: 1, .5: 0, 1: -1, 1.5: 0, 2: 1, -1: -1, 7: -1} {
		require.Equal(t, want, cosPi(x)+0, "%v", x)
	}
	for i := range 20000 {
		x := float64(i) / 4999
		// math.Cos rounds π·x: half a unit of an argument of up to 13.
		require.InDelta(t, math.Cos(math.Pi*x), cosPi(x), 2e-15, "%v", x)
		if x <= .5 {
			require.InDelta(t, math.Cos(math.Pi*x), cosPi(x), 4.5e-16, "%v", x)
		}
	}
}
