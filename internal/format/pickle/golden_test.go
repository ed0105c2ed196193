package pickle

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

// expected is what Python and torch say of a file (golden/gen/checkpoint/pickles.py).
type expected struct {
	Opcodes      map[string]int `json:"opcodes"`
	Globals      [][2]string    `json:"globals"`
	StorageBytes *int64         `json:"storage_bytes"`
	Tensors      []struct {
		Name, DType string
		Shape       []int64
		Strides     []int64
		Offset      int64
		Parameter   bool
	} `json:"tensors"`
}

func goldens(t testing.TB) map[string]expected {
	files, _ := golden(t)
	return files
}

// golden returns what is expected of the files, and what torch.load(weights_only=True) lets a file name.
func golden(t testing.TB) (files map[string]expected, allowed []string) {
	text, err := os.ReadFile("testdata/EXPECT.json")
	require.NoError(t, err)
	var all struct {
		Files   map[string]expected
		Allowed []string
	}
	require.NoError(t, json.Unmarshal(text, &all))
	require.GreaterOrEqual(t, len(all.Files), 20)
	require.GreaterOrEqual(t, len(all.Allowed), 100)
	return all.Files, all.Allowed
}

func scan(t testing.TB, path string) *Summary {
	f, err := format.Open(path)
	require.NoError(t, err)
	defer f.Close()
	s, err := ScanAt(f, f.Size, f.Path)
	require.NoError(t, err)
	return s
}

func TestGoldens(t *testing.T) {
	for name, want := range goldens(t) {
		s := scan(t, filepath.Join("testdata", name))
		require.Equal(t, filepath.Join("testdata", name), s.Path)
		require.Empty(t, s.Problems, name)
		if want.Opcodes != nil {
			got := map[string]int{}
			for _, o := range s.Opcodes {
				got[o.Name] = o.Count
			}
			require.Equal(t, want.Opcodes, got, name)
		}
		if want.Globals != nil {
			var got [][2]string
			for _, g := range s.Globals {
				got = append(got, [2]string{g.Module, g.Name})
			}
			require.ElementsMatch(t, want.Globals, got, name)
		}
		if want.StorageBytes != nil {
			var sum int64
			for _, st := range s.Storages {
				require.Equal(t, st.Bytes, st.Stored)
				sum += st.Bytes
			}
			require.Equal(t, *want.StorageBytes, sum, name)
		}
		require.Len(t, s.Tensors, len(want.Tensors), name)
		for _, w := range want.Tensors {
			i := slices.IndexFunc(s.Tensors, func(g Tensor) bool { return g.Name == w.Name })
			require.GreaterOrEqual(t, i, 0, "%s: %s", name, w.Name)
			g := s.Tensors[i]
			require.Equal(t, w.DType, g.DType, w.Name)
			require.Equal(t, append([]int64{}, w.Shape...), g.Shape, w.Name)
			require.Equal(t, append([]int64{}, w.Strides...), g.Strides, w.Name)
			require.Equal(t, w.Offset, g.Offset, w.Name)
			require.Equal(t, w.Parameter, g.Parameter, w.Name)
		}
	}
}

// What each hostile file would run is listed with the risk it is, and the checkpoints of torch need nothing beyond what
// torch.load(weights_only=True) allows.
func TestRisk(t *testing.T) {
	for name := range goldens(t) {
		s := scan(t, filepath.Join("testdata", name))
		worst, calls := Rebuilds, 0
		for _, g := range s.Globals {
			worst = max(worst, g.Risk())
			calls += g.Calls
		}
		switch {
		case bytes.HasPrefix([]byte(name), []byte("hostile")):
			require.Equal(t, Executes, worst, name)
			require.Equal(t, 1, calls, name)
		case name == "module.pt" || name == "rng_state.pth":
			require.Equal(t, Imports, worst, name)
		default:
			require.Equal(t, Rebuilds, worst, "%s: %v", name, s.Globals)
		}
	}
}

// What torch allows is harmless, what reaches beyond tensors is not, and neither is a name that nobody can read.
func TestRiskOfNames(t *testing.T) {
	named := func(full string) Global {
		i := strings.LastIndexByte(full, '.')
		return Global{Module: full[:i], Name: full[i+1:]}
	}
	_, allowed := golden(t)
	for _, name := range allowed {
		require.Equal(t, Rebuilds, named(name).Risk(), name)
	}
	for _, name := range harmless {
		old := strings.Replace(name, "__builtin__.", "builtins.", 1)
		require.True(t, slices.Contains(allowed, old) || old == "builtins.frozenset", "torch does not allow %s", name)
	}
	for _, name := range []string{"os.system", "posix.popen", "nt.system", "builtins.eval", "builtins.exec", "builtins.getattr", "builtins.__import__", "__builtin__.apply", "subprocess.Popen",
		"sys.modules", "importlib.import_module", "runpy.run_path", "operator.attrgetter", "torch.load", "torch.hub.load", "functools.partial", "pickle.loads", "a.__class__", "os.path.join", "types.CodeType"} {
		require.Equal(t, Executes, named(name).Risk(), name)
	}
	for _, name := range []string{"transformers.training_args.TrainingArguments", "numpy._core.multiarray._reconstruct", "collections.defaultdict", "torch.nn.modules.linear.Linear", "torch.BrotStorage", "torch.cuda.float32"} {
		require.Equal(t, Imports, named(name).Risk(), name)
	}
	require.Equal(t, Executes, Global{}.Risk())
	require.Equal(t, Executes, Global{Module: "a", Name: "b.__reduce__"}.Risk())
}

func TestSummary(t *testing.T) {
	s := scan(t, "testdata/state_dict.pt")
	require.Equal(t, TorchZip, s.Container)
	require.Equal(t, 2, s.Protocol)
	require.Equal(t, []string{"weight", "transposed", "half", "bf16", "int8", "flag", "empty", "count"}, s.Keys)
	require.Equal(t, int64(96), s.Storages[0].Bytes, "two views of one storage")
	require.Equal(t, "cpu", s.Storages[0].Device)
	require.Empty(t, s.Notes)

	s = scan(t, "testdata/legacy.pt")
	require.Equal(t, TorchLegacy, s.Container)
	require.Equal(t, 5, s.Programs)

	s = scan(t, "testdata/hostile_second.pkl")
	require.Equal(t, 2, s.Programs)
	require.Equal(t, Plain, s.Container)
}

// The pickles that trainers saved: every storage is there and of its size, and the value head is found by its name.
func TestTrainers(t *testing.T) {
	const root = "../../../golden/checkpoint"
	n := 0
	require.NoError(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !slices.Contains([]string{".pt", ".pth", ".bin"}, filepath.Ext(path)) {
			return err
		}
		n++
		s := scan(t, path)
		require.Empty(t, s.Problems, path)
		require.Empty(t, s.Notes, path)
		require.Equal(t, TorchZip, s.Container, path)
		switch filepath.Base(path) {
		case "optimizer.pt":
			require.Equal(t, !strings.Contains(path, "opt_sgd/"), len(s.Tensors) > 0, path) // plain SGD has no state
			for _, x := range s.Tensors {
				// AdamW, Adafactor, Adagrad, RMSprop and SGD with momentum
				require.Regexp(t, `^state\.\d+\.(step|exp_avg|exp_avg_sq|exp_avg_sq_row|exp_avg_sq_col|RMS|sum|square_avg|momentum_buffer)$`, x.Name)
			}
			require.Contains(t, s.Keys, "param_groups")
		case "pytorch_model.bin":
			require.Len(t, s.Tensors, 2)
			require.Equal(t, "v_head.summary.weight float32[1 16]", s.Tensors[0].String())
			require.Equal(t, "v_head.summary.bias float32[1]", s.Tensors[1].String())
		case "training_args.bin":
			require.True(t, slices.ContainsFunc(s.Globals, func(g Global) bool { return g.Name == "SFTConfig" && g.Risk() == Imports }))
		}
		return nil
	}))
	require.GreaterOrEqual(t, n, 9)
}
