package cuda

import (
	"flag"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/accel/cuda/ptxsim"
	"plumbline/verify/op"
)

// faultStride runs every n-th fault of the kernels: all of them take minutes.
var faultStride = flag.Int("faults", everyFault, "run every n-th fault of the CUDA kernels")

var faultKernels = flag.String("kernels", "", "of the kernels whose names end in this")

// edits are what goes wrong in a kernel: a line of its PTX that matches becomes another one.
var edits = []struct {
	name    string
	line    *regexp.Regexp
	instead string
	most    int // of each kernel
}{
	{"missing barrier", regexp.MustCompile(`bar\.sync 0;|bar\.sync 	0;`), "", 6},
	{"missing barrier of a warp", regexp.MustCompile(`bar\.warp\.sync[^;]*;`), "", 3},
	{"a copy too few waited for", regexp.MustCompile(`cp\.async\.wait_group 1;`), "cp.async.wait_group 2;", 3},
	{"copies of two steps in one group", regexp.MustCompile(`cp\.async\.commit_group;`), "", 1},
	{"one element too many", regexp.MustCompile(`setp\.ge\.s32(.*);`), "setp.gt.s32$1;", 3},
	{"one element too few", regexp.MustCompile(`setp\.lt\.s32(.*);`), "setp.le.s32$1;", 3},
	{"sum for difference", regexp.MustCompile(`sub\.rn\.f32(.*);`), "add.rn.f32$1;", 2},
	{"sign lost", regexp.MustCompile(`neg\.f32(.*);`), "mov.f32$1;", 2},
	{"accumulator lost", regexp.MustCompile(`fma\.rn\.f32 	(%f\d+), (%f\d+), (%f\d+), (%f\d+);`), "mul.rn.f32 	$1, $2, $3;", 3},
	{"accumulator of float64 lost", regexp.MustCompile(`fma\.rn\.f64 	(%fd\d+), (%fd\d+), (%fd\d+), (%fd\d+);`), "mul.rn.f64 	$1, $2, $3;", 2},
	{"codes truncated", regexp.MustCompile(`cvt\.rni\.f32\.f32`), "cvt.rzi.f32.f32", 2},
	{"codes without sign", regexp.MustCompile(`cvt\.s16\.s8`), "cvt.u16.u8", 2},
	{"the neighbour's element", regexp.MustCompile(`ld\.global\.f32 	(%f\d+), \[(%rd\d+)\];`), "ld.global.f32 	$1, [$2+4];", 4},
	{"halves of B swapped", regexp.MustCompile(`(mma\.sync.*\{.*\}, \{.*\}, )\{(%r\d+), (%r\d+)\}`), "$1{$3, $2}", 2},
	{"halves of B swapped", regexp.MustCompile(`(mma\.sync.*\{.*\}, \{.*\}, )\{(%r\d+),(%r\d+)\}`), "$1{$3,$2}", 2},
	{"quarters of A swapped", regexp.MustCompile(`(mma\.sync[^{]*\{[^}]*\}, )\{(%r\d+),(%r\d+),(%r\d+),(%r\d+)\}`), "$1{$2,$4,$3,$5}", 2},
	{"no transposition", regexp.MustCompile(`\.x4\.trans\.`), ".x4.", 2},
	{"a step of a butterfly twice", regexp.MustCompile(`(shfl\.sync\.bfly\.b32.*, )16, 31`), "${1}8, 31", 2},
	{"the other operand selected", regexp.MustCompile(`selp\.f32 	(%f\d+), (%f\d+), (%f\d+), (%p\d+);`), "selp.f32 	$1, $3, $2, $4;", 3},
	{"a row's start forgotten", regexp.MustCompile(`mad\.lo\.s32 	(%r\d+), (%r\d+), (%r\d+), (%r\d+);`), "mul.lo.s32 	$1, $2, $3;", 3},
	{"quotient for product", regexp.MustCompile(`div\.rn\.f32(.*);`), "mul.rn.f32$1;", 2},
	{"no reciprocal", regexp.MustCompile(`rcp\.rn\.f32(.*);`), "mov.f32$1;", 1},
	{"no root", regexp.MustCompile(`sqrt\.rn\.f32(.*);`), "mov.f32$1;", 1},
	{"a larger number is the maximum", regexp.MustCompile(`setp\.gt\.f32(.*);`), "setp.lt.f32$1;", 2},
	{"shared bytes shifted", regexp.MustCompile(`st\.shared\.f32 	\[(%r\d+)\], `), "st.shared.f32 	[$1+4], ", 2},
	{"bfloat16 truncated", regexp.MustCompile(`cvt\.rn\.bf16x2\.f32 	?\s?(%r\d+), (%f\d+), (%f\d+);`), "{ .reg .b32 %low, %high; mov.b32 %low, $3; mov.b32 %high, $2; shr.u32 %low, %low, 16; and.b32 %high, %high, 0xffff0000; or.b32 $1, %low, %high; }", 2},
}

// fault is a PTX with one line changed.
type fault struct {
	module, kernel, name string
	line                 int
	was, text            string
}

var entryOf = regexp.MustCompile(`\.visible \.entry (\w+)\(`)

func faultsOf(t *testing.T, module string) (all []fault) {
	text, err := PTX(module)
	require.NoError(t, err)
	lines := strings.Split(text, "\n")
	kernel, seen := "", map[string]int{}
	for i, line := range lines {
		if m := entryOf.FindStringSubmatch(line); m != nil {
			kernel = m[1]
		}
		for _, e := range edits {
			if !e.line.MatchString(line) || seen[kernel+e.name] >= e.most {
				continue
			}
			seen[kernel+e.name]++
			edited := append([]string(nil), lines...)
			edited[i] = e.line.ReplaceAllString(line, e.instead)
			all = append(all, fault{module, kernel, e.name, i + 1, strings.TrimSpace(line), strings.Join(edited, "\n")})
		}
	}
	return all
}

// harmless says why an edit changes nothing that an op promises, "" if it is no such edit.
func harmless(f fault, lines []string) string {
	near := strings.Join(lines[max(0, f.line-12):min(len(lines), f.line+8)], "\n")
	switch {
	case f.name == "one element too few" && strings.Contains(near, "selp.b32"):
		return "the smaller of two equal numbers is either of them"
	case strings.HasPrefix(f.kernel, "attention_keys") && f.name == "one element too many" && strings.Contains(near, "div.s32"):
		return "a group has one head at least: whether it has none is asked once more than necessary"
	case f.name == "one element too many" && wide.MatchString(f.kernel) && laneOf(f, lines):
		return "heads of this kernel are wider than a warp: every lane has an element"
	case f.name == "missing barrier" && !strings.Contains(strings.Join(lines[f.line:f.line+endOf(lines[f.line:])], "\n"), "shared"):
		return "nothing touches shared memory after the last barrier"
	case (f.name == "the other operand selected" || f.name == "accumulator lost" || f.name == "sign lost") && strings.Contains(near, "0f3FB8AA3B") && f.kernel != "policy_loss":
		return "the second part of the argument of an exponential is smaller than what these ops' own sums may err by; policy_loss tries the same code alone"
	}
	return ""
}

var wide = regexp.MustCompile(`^attention_\w+_(128|256)$`)

// laneOf reports whether the line compares the number of a lane.
func laneOf(f fault, lines []string) bool {
	m := regexp.MustCompile(`setp\.ge\.s32\s+%p\d+, (%r\d+),`).FindStringSubmatch(f.was)
	if m == nil {
		return false
	}
	lane := regexp.MustCompile(`and\.b32\s+` + m[1] + `, %r\d+, 31;`)
	for i := f.line - 1; i >= 0 && !strings.Contains(lines[i], ".entry"); i-- {
		if lane.MatchString(lines[i]) {
			return true
		}
	}
	return false
}

// endOf is how many lines are left of a kernel.
func endOf(lines []string) int {
	for i, l := range lines {
		if strings.HasPrefix(l, "}") {
			return i
		}
	}
	return len(lines)
}

// moduleOf is where the kernels of an op are.
var moduleOf = map[string]string{"i8.QuantizeRows": "quantize", "i8.Gemm": "gemm_i8", "i8.GemmScaled": "gemm_i8", "bf16.W8A16": "w8a16", "bf16.W8A16DX": "w8a16", "f32.Gemm": "gemm_f32",
	"f32.RMSNorm": "norm", "f32.RMSNormBackward": "norm", "f32.LayerNorm": "norm", "f32.LayerNormBackward": "norm", "f32.SwiGLU": "pointwise", "f32.SwiGLUBackward": "pointwise", "f32.GELU": "pointwise",
	"f32.RoPE": "pointwise", "f32.Attention": "attention", "f32.AttentionBackward": "attention", "f32.HeadBatch": "head", "f32.PolicyLoss": "head", "f32.AdamW": "optim", "f32.Project": "optim",
	"i8.Embedding": "pointwise", "f32.Move": "pointwise"}

// Faults planted in the text of the kernels are caught by the ops' own checks, or by the simulator.
func TestKernelFaults(t *testing.T) {
	var problems = map[string][]problem{}
	for i, o := range op.OnDevice(simulators(nil, ptxsim.Options{}), simulated) {
		module := moduleOf[o.Name]
		require.NotEmpty(t, module, o.Name)
		if o.Name == "f32.AttentionBackward" { // what is drawn is small: every kernel gets a problem with two chunks of keys, groups and padding
			problems[module] = nil
			for _, c := range attentionCases() {
				problems[module] = append(problems[module], caseOf(i, c))
			}
			continue
		}
		for n := range 30 {
			problems[module] = append(problems[module], caseOf(i, o.Case(7, n)))
		}
	}
	problems["head"] = append(problems["head"], exponentialProblem, outsideProblem)
	reached := map[string]map[int]bool{}
	for module, list := range problems {
		reached[module] = map[int]bool{}
		for _, p := range list {
			require.Empty(t, p(simulators(nil, ptxsim.Options{Reached: reached[module]})))
		}
	}
	n, missed := 0, 0
	for _, module := range Kernels() {
		for i, f := range faultsOf(t, module) {
			if i%*faultStride != 0 || !strings.HasSuffix(f.kernel, *faultKernels) || !reached[module][f.line] {
				continue
			}
			n++ // of what runs: the compiler unrolls loops for sizes that an op does not take
			why := ""
			for j, p := range problems[module] {
				if module == "attention" && !strings.HasSuffix(f.kernel, []string{"_64", "_128", "_256"}[j%3]) {
					continue
				}
				if why = p(simulators(map[string]string{f.module: f.text}, ptxsim.Schedules...)); why != "" {
					break
				}
			}
			if why == "" {
				if reason := harmless(f, strings.Split(f.text, "\n")); reason != "" {
					n--
					t.Logf("%s, line %d, %s: no fault: %s", f.kernel, f.line, f.name, reason)
					continue
				}
				missed++
				t.Logf("missed: %s, line %d, %s: %s", f.kernel, f.line, f.name, f.was)
			}
		}
	}
	t.Logf("%d of %d faults caught", n-missed, n)
	require.LessOrEqual(t, missed*20, n, "more than 5 %% of the faults are missed")
}
