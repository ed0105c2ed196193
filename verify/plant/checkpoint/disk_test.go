//go:build unix

package checkpoint

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/checkpoint"
)

// write puts a tree of memory on the disk.
func write(t testing.TB, dir string, m *checkpoint.Memory) string {
	t.Helper()
	root := filepath.Join(dir, m.Name)
	require.NoError(t, os.MkdirAll(root, 0o755))
	for n, text := range m.Files {
		full := filepath.Join(root, filepath.FromSlash(n))
		require.NoError(t, os.MkdirAll(filepath.Dir(full), 0o755))
		require.NoError(t, os.WriteFile(full, text, 0o644))
	}
	for n := range m.Links {
		require.NoError(t, os.Symlink("/etc/hostname", filepath.Join(root, n)))
	}
	return root
}

// summary is what two runs over the same files must agree on.
func summary(results []check.Result) (list []string) {
	for _, r := range results {
		fault := ""
		if len(r.Explanations) > 0 {
			fault = r.Explanations[0].Fault
		}
		list = append(list, fmt.Sprintf("%s %s %s %d", r.Verdict, r.Check, fault, r.Compared))
	}
	return list
}

// Every planted fault is found in a folder on the disk as it is in memory.
func TestDiskAgreesWithMemory(t *testing.T) {
	planted, err := PlantAll(2)
	require.NoError(t, err)
	for i, p := range planted {
		if p.Fault.ID == "SPECIAL-FILE" {
			continue // in the hostile table
		}
		dir := filepath.Join(t.TempDir(), fmt.Sprint(i))
		put := func(f *checkpoint.Folder) string {
			if f == nil {
				return ""
			}
			return write(t, dir, f.Tree.(*checkpoint.Memory))
		}
		in := load(t, checkpoint.Paths{Dir: put(p.Input.Folder), Base: put(p.Input.Base), Init: put(p.Input.Init), Merged: put(p.Input.Merged), Against: put(p.Input.Against)})
		in.Size, in.MaxSize, in.Needs, in.Model = p.Input.Size, p.Input.MaxSize, p.Input.Needs, p.Input.Model
		want, err := checkpoint.Suite.Run(p.Input, check.Selection{})
		require.NoError(t, err)
		require.Equal(t, summary(want), summary(judge(t, in)), "%s %s", p.Check, p.Fault.ID)
	}
}

func TestHostileFolders(t *testing.T) {
	adapter := aloneScene(random(3)).dir.Files
	model := shardedScene(random(4)).dir.Files
	single := wholeScene(random(4)).dir.Files
	cases := []struct {
		name     string
		files    map[string][]byte
		prepare  func(t *testing.T, dir string)
		fault    string
		fragment string
	}{
		{"link out of the folder", single, func(t *testing.T, dir string) {
			outside := filepath.Join(filepath.Dir(dir), "outside.safetensors")
			require.NoError(t, os.Rename(filepath.Join(dir, "model.safetensors"), outside))
			require.NoError(t, os.Symlink("../outside.safetensors", filepath.Join(dir, "model.safetensors")))
		}, "LINK-OUT", "leads out"},
		{"link to nowhere", single, func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "model.safetensors")))
			require.NoError(t, os.Symlink("blob", filepath.Join(dir, "model.safetensors")))
		}, "LINK-OUT", "leads nowhere"},
		{"link to a device", single, func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "model.safetensors")))
			require.NoError(t, os.Symlink("/dev/zero", filepath.Join(dir, "model.safetensors")))
		}, "LINK-OUT", "leads out"},
		{"link in a circle", single, func(t *testing.T, dir string) {
			require.NoError(t, os.Symlink("loop.json", filepath.Join(dir, "loop.json")))
		}, "LINK-OUT", "loop.json: is a symbolic link that leads back to itself"},
		{"FIFO as a shard", model, func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "model-00002-of-00003.safetensors")))
			require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "model-00002-of-00003.safetensors"), 0o644))
		}, "SPECIAL-FILE", "FIFO"},
		{"folder as a file of weights", adapter, func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, adapterFile)))
			require.NoError(t, os.Mkdir(filepath.Join(dir, adapterFile), 0o755))
		}, "CONFIG-ONLY", "is not"},
		{"index of 200 MB", model, func(t *testing.T, dir string) {
			require.NoError(t, os.Truncate(filepath.Join(dir, indexFile), 200_000_000))
		}, "BROKEN-JSON", "want at most"},
		{"index 10,001 deep", model, replace(indexFile, strings.Repeat(`{"a":`, 10001)), "BROKEN-JSON", "deeper"},
		{"absolute name in the index", model, replace(indexFile, `{"weight_map": {"x": "/etc/passwd"}}`), "INDEX-ESCAPE", "/etc/passwd"},
		{"duplicate key in a configuration", adapter, replace("adapter_config.json", `{"peft_type": "LORA", "r": 4, "r": 8}`), "BROKEN-JSON", "r"},
		{"r that is no integer", adapter, replace("adapter_config.json", `{"peft_type": "LORA", "r": 4.5}`), "BROKEN-JSON", "4.5"},
		{"r above all bounds", adapter, replace("adapter_config.json", `{"peft_type": "LORA", "r": 99999999999999999999}`), "BROKEN-JSON", "999"},
		{"a rank of 2³⁰", adapter, replace("adapter_config.json", `{"peft_type": "LORA", "r": 1073741824, "target_modules": ["q_proj", "c_attn"]}`), "RANK-CONFIG", "1073741824"},
		{"a target that is a hostile expression", adapter, replace("adapter_config.json", `{"peft_type": "LORA", "r": 4, "target_modules": "(a*)*b"}`), "", ""},
		{"a pattern that Go does not know", adapter, replace("adapter_config.json", `{"peft_type": "LORA", "r": 4, "target_modules": "(?!x)q_proj"}`), "", ""},
		{"weights of 7 bytes", adapter, replace(adapterFile, "1234567"), "BROKEN-SAFETENSORS", "7 bytes"},
		{"header length 2⁶³", adapter, replace(adapterFile, "\x00\x00\x00\x00\x00\x00\x00\x80{}"), "BROKEN-SAFETENSORS", "header length"},
		{"weights grown by sparse bytes", adapter, func(t *testing.T, dir string) {
			require.NoError(t, os.Truncate(filepath.Join(dir, adapterFile), 1<<34))
		}, "BROKEN-SAFETENSORS", "follow the last tensor"},
		{"tokenizer with a negative id", single, replace("tokenizer.json", `{"model": {"vocab": {"a": -1}}}`), "BROKEN-JSON", "negative"},
		{"config of a model with 2⁶² layers", single, replace("config.json", `{"model_type": "llama", "num_hidden_layers": 4611686018427387904, "hidden_size": 8}`), "BROKEN-JSON", "num_hidden_layers"},
		{"config that claims 65,536 layers", single, replace("config.json", `{"model_type": "llama", "num_hidden_layers": 65536, "hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 8, "max_position_embeddings": 8}`), "BROKEN-JSON", "at most 4096"},
		{"pickle of an opcode bomb", adapter, replace("value_head.bin", "\x80\x02"+strings.Repeat("(", 100_000)), "BROKEN-FILE", "value_head.bin"},
		{"manifest that names what lies outside", adapter, replace("MANIFEST.json", `{"files": {"../../etc/passwd": {"size": 1}}}`), "MANIFEST-MISSING", "passwd"},
		{"manifest with a negative size", adapter, replace("MANIFEST.json", `{"files": {"adapter_config.json": {"size": -5}}}`), "MANIFEST-EXTRA", "adapter_model"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := write(t, t.TempDir(), &memory("model", c.files).Memory)
			c.prepare(t, dir)
			in, err := checkpoint.Load(t.Context(), checkpoint.Paths{Dir: dir})
			if c.fault == "" { // any answer but a crash; an error names the file
				if err != nil {
					require.ErrorContains(t, err, c.fragment)
					return
				}
				defer in.Close()
				judge(t, in)
				return
			}
			require.NoError(t, err)
			defer in.Close()
			results := judge(t, in)
			require.Equal(t, c.fault, firstFault(results, check.Fail), "%v", failures(results))
			require.Contains(t, strings.Join(failures(results), "\n"), c.fragment)
		})
	}
}

func replace(file, text string) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
	}
}

// A file that shrinks after it was opened is an error with its name.
func TestFileCutWhileRead(t *testing.T) {
	dir := write(t, t.TempDir(), &wholeScene(random(6)).dir.Memory)
	in := load(t, checkpoint.Paths{Dir: dir})
	require.NoError(t, os.Truncate(filepath.Join(dir, "model.safetensors"), 2000))
	_, err := checkpoint.Suite.Run(in, check.Selection{})
	require.ErrorContains(t, err, "model.safetensors")
}

func TestLoadErrors(t *testing.T) {
	dir := t.TempDir()
	_, err := checkpoint.Load(t.Context(), checkpoint.Paths{Dir: filepath.Join(dir, "nowhere")})
	require.ErrorIs(t, err, os.ErrNotExist)
	file := filepath.Join(dir, adapterFile)
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	_, err = checkpoint.Load(t.Context(), checkpoint.Paths{Dir: file})
	var usage *checkpoint.UsageError
	require.ErrorAs(t, err, &usage)
	_, err = checkpoint.Load(t.Context(), checkpoint.Paths{Dir: dir, Base: filepath.Join(dir, "nowhere")})
	require.ErrorIs(t, err, os.ErrNotExist)
}

// A file of a sealed checkpoint that was replaced by a link to one with the same bytes is refused by a resume, and named.
func TestLinkInPlaceOfAFile(t *testing.T) {
	s := runScene(random(5))
	dir := write(t, t.TempDir(), &s.dir.Memory)
	in := load(t, checkpoint.Paths{Dir: dir})
	require.Empty(t, failures(judge(t, in, "folder/manifest")))
	from, to := filepath.Join(dir, "step_4", "tokenizer.json"), filepath.Join(dir, "step_2", "tokenizer.json")
	require.NoError(t, os.Remove(to))
	require.NoError(t, os.Symlink(filepath.Join("..", "step_4", "tokenizer.json"), to))
	a, err := os.ReadFile(from)
	require.NoError(t, err)
	b, err := os.ReadFile(to)
	require.NoError(t, err)
	require.Equal(t, a, b)
	bad := failures(judge(t, load(t, checkpoint.Paths{Dir: dir}), "folder/manifest"))
	require.Len(t, bad, 1)
	require.Contains(t, bad[0], "tokenizer.json is a symbolic link")
}

// A step is known by the name of the folder that was named directly, and by that of the folder behind a link.
func TestStepOfTheFolderItself(t *testing.T) {
	s := trainerScene(random(5))
	s.dir.editJSON("checkpoint-3/trainer_state.json", func(o map[string]any) { o["global_step"] = 4 })
	dir := write(t, t.TempDir(), &s.dir.Memory)
	link := filepath.Join(t.TempDir(), "latest")
	require.NoError(t, os.Symlink(filepath.Join(dir, "checkpoint-3"), link))
	for _, p := range []string{filepath.Join(dir, "checkpoint-3"), link} {
		require.Equal(t, "STEP-MISMATCH", firstFault(judge(t, load(t, checkpoint.Paths{Dir: p}), "resume/state"), check.Fail), p)
	}
}
