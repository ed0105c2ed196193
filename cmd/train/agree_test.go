package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/refmodel"
	"plumbline/verify/check"
	"plumbline/verify/checkpoint"
)

// spoil changes one file of a model's folder: a bit or a byte, a piece that is cut or zeroed, a digit, a bracket, or the end that is lost.
func spoil(r *rand.Rand, b []byte) []byte {
	b = append([]byte(nil), b...)
	at := r.IntN(len(b))
	if r.IntN(2) == 0 {
		at = r.IntN(min(len(b), 2048)) // the header, in a file of weights
	}
	switch r.IntN(6) {
	case 0:
		b[at] ^= 1 << r.IntN(8)
	case 1:
		b[at] = byte(r.Uint32())
	case 2:
		b = append(b[:at], b[min(len(b), at+1+r.IntN(8)):]...)
	case 3:
		clear(b[at:min(len(b), at+1+r.IntN(8))])
	case 4:
		digits := strings.IndexAny(string(b[at:]), "0123456789")
		if digits >= 0 {
			b[at+digits] = "0123456789-"[r.IntN(11)]
		}
	case 5:
		b = b[:at]
	}
	return b
}

// sampled reports why train sample does not take a folder, nil if it does.
func sampled(dir string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	m, err := refmodel.Open(dir, refmodel.Options{NoTokenizer: true})
	if err != nil {
		return err
	}
	_, err = m.Generate(context.Background(), []int{1, 2, 3}, refmodel.GenerateOptions{Tokens: 1}, nil)
	return err
}

// judged reports why verify checkpoint does not pass a folder, nil if it does.
func judged(dir string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	in, err := checkpoint.Load(context.Background(), checkpoint.Paths{Dir: dir})
	if err != nil {
		return err
	}
	defer in.Close()
	results, err := checkpoint.Suite.Run(in, check.Selection{})
	if err != nil {
		return err
	}
	if check.Exit(results, check.Policy{}) == check.ExitPass {
		return nil
	}
	for _, r := range results {
		if r.Verdict == check.Fail || r.Verdict == check.Undetermined {
			id := ""
			if len(r.Explanations) > 0 {
				id = r.Explanations[0].Fault
			}
			return fmt.Errorf("%v %s %s: %s", r.Verdict, r.Check, id, r.Reason)
		}
	}
	return errors.New("nothing checked")
}

// What verify checkpoint passes train sample takes, and what train sample refuses verify checkpoint does not pass. The other way round
// verify may know more: a finding about weights that load.
func TestAgree(t *testing.T) {
	total := 120
	if text := os.Getenv("HOSTILE"); text != "" {
		var err error
		total, err = strconv.Atoi(text)
		require.NoError(t, err)
		total = min(total, 1000)
	}
	const seed = 7
	r := rand.New(rand.NewPCG(seed, 0))
	models := []string{"../../internal/format/hf/testdata/llama", "../../internal/format/hf/testdata/qwen2", "../../golden/peft/llama", "../../internal/format/hf/testdata/llama_bias"}
	both, neither, more := 0, 0, map[string]int{}
	root := t.TempDir()
	for i, from := range models { // without the generation_config.json of other vocabularies
		healthy := filepath.Join(root, fmt.Sprint("healthy-", i))
		require.NoError(t, os.CopyFS(healthy, os.DirFS(from)))
		require.NoError(t, os.RemoveAll(filepath.Join(healthy, "generation_config.json")))
		models[i] = healthy
		require.NoError(t, sampled(healthy), from)
		require.NoError(t, judged(healthy), from)
	}
	for i := range total {
		dir := filepath.Join(root, strconv.Itoa(i))
		require.NoError(t, os.CopyFS(dir, os.DirFS(models[i%len(models)])))
		name := []string{"config.json", "model.safetensors"}[i/len(models)%2]
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), spoil(r, b), 0o644))
		s, v := sampled(dir), judged(dir)
		where := fmt.Sprintf("seed %d, case %d, %s of %s", seed, i, name, models[i%len(models)])
		require.NotContains(t, fmt.Sprint(s, v), "panic", where)
		switch {
		case s == nil && v == nil:
			both++
		case s != nil && v != nil:
			neither++
		case s != nil:
			t.Errorf("%s: verify checkpoint passes, train sample refuses: %v", where, s)
		default:
			more[strings.SplitN(v.Error(), ":", 2)[0]]++
			if format.IsMalformed(v) {
				t.Errorf("%s: train sample takes it, verify checkpoint cannot read it: %v", where, v)
			}
		}
		require.NoError(t, os.RemoveAll(dir))
	}
	t.Logf("%d models: both accept %d, both refuse %d, findings about weights that load: %v", total, both, neither, more)
	require.Positive(t, both)
	require.Positive(t, neither)
}

// The shape and the type of every tensor are compared: a model in which one of them is another is neither passed by verify checkpoint nor
// taken by train sample, whichever tensor it is. The bytes of the tensors stay as they were.
func TestAgreeOnEveryTensor(t *testing.T) {
	type tensor struct {
		DType   string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	tried := 0
	for _, from := range []string{"../../internal/format/hf/testdata/qwen2", "../../golden/peft/llama"} {
		dir := t.TempDir()
		require.NoError(t, os.CopyFS(dir, os.DirFS(from)))
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "generation_config.json")))
		path := filepath.Join(dir, "model.safetensors")
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		data := 8 + int(binary.LittleEndian.Uint64(b))
		header := map[string]json.RawMessage{}
		require.NoError(t, json.Unmarshal(b[8:data], &header))
		put := func(name string, x tensor) {
			old := header[name]
			defer func() { header[name] = old }()
			header[name], err = json.Marshal(x)
			require.NoError(t, err)
			text, err := json.Marshal(header)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text, b[data:]), 0o644))
		}
		for _, name := range slices.Sorted(maps.Keys(header)) {
			if name == "__metadata__" {
				continue
			}
			var x tensor
			require.NoError(t, json.Unmarshal(header[name], &x))
			put(name, x)
			require.NoError(t, sampled(dir))
			require.NoError(t, judged(dir))
			whole, shape := x, slices.Clone(x.Shape)
			whole.DType = map[string]string{"F16": "I16", "BF16": "I16", "F32": "I32", "F64": "I64"}[x.DType]
			longer, folded := x, x
			longer.Shape = append([]int{1}, shape...)
			folded.Shape = append(shape[:len(shape)-1:len(shape)-1], shape[len(shape)-1]/2, 2)
			for what, changed := range map[string]tensor{"whole numbers": whole, "a dimension before": longer, "a dimension in two": folded} {
				put(name, changed)
				tried++
				require.Error(t, sampled(dir), "%s: %s, %s", from, name, what)
				require.Error(t, judged(dir), "%s: %s, %s", from, name, what)
			}
		}
	}
	require.Greater(t, tried, 60)
}
