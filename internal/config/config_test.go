package config_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/internal/cases"
	"plumbline/internal/config"
)

type tree = map[string]any

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, file, text string
		want             tree
	}{
		{"YAML", "a.yaml", "a: 1\nb: {c: [1.5, x, true]}\n", tree{"a": 1.0, "b": tree{"c": []any{1.5, "x", true}}}},
		{"YAML without a value", "a.yml", "a:\nb: ~\nc: null\nd: \"\"\n", tree{"a": nil, "b": nil, "c": nil, "d": ""}},
		{"booleans of YAML 1.1", "a.yaml", "{a: yes, b: Off, c: \"yes\", d: y}", tree{"a": true, "b": false, "c": "yes", "d": "y"}},
		{"numbers", "a.yaml", "a: 1e-5\nb: -.5\nc: 2.\nd: 1_000\ne: 010\nf: 1:30\ng: 0x10\nh: +3\n",
			tree{"a": 1e-5, "b": -0.5, "c": 2.0, "d": "1_000", "e": "010", "f": "1:30", "g": "0x10", "h": 3.0}},
		{"infinity", "a.yaml", "a: .inf\nb: -.INF\nc: inf\n", tree{"a": math.Inf(1), "b": math.Inf(-1), "c": "inf"}},
		{"beyond float64", "a.yaml", "a: 1e999\n", tree{"a": "1e999"}},
		{"text", "a.yaml", "a: |\n  x\n  y\nb: >-\n  x\n  y\nc: 'it''s'\nd: 2026-11-21\n", tree{"a": "x\ny\n", "b": "x y", "c": "it's", "d": "2026-11-21"}},
		{"a byte order mark", "a.yaml", "\uFEFFa: 1\n", tree{"a": 1.0}},
		{"interpolation", "a.yaml", "a: {b: 0.5}\nc: ${a.b}\nd: ${oc.select:a.b,1}\ne: ${oc.select:a.x,0.2}\nf: ${c}\n",
			tree{"a": tree{"b": 0.5}, "c": 0.5, "d": 0.5, "e": 0.2, "f": 0.5}},
		{"JSON", "a.json", `{"a": 1e-5, "b": {"c": [null, "x", false]}}`, tree{"a": 1e-5, "b": tree{"c": []any{nil, "x", false}}}},
		{"JSON under another name", "a.txt", ` {"a": 1}`, tree{"a": 1.0}},
		{"flags", "a.txt", "--a 1 --b=x --c --d 1 -2 --e-f None --g.h-i -0.5", tree{"a": 1.0, "b": "x", "c": true, "d": []any{1.0, -2.0}, "e_f": nil, "g": tree{"h-i": -0.5}}},
		{"a flag and its value on lines of their own", "a.args", "--a\n1\n--b\n", tree{"a": 1.0, "b": true}},
		{"a list with commas", "a.txt", `--a "q", "v" --b`, tree{"a": []any{"q", "v"}, "b": true}},
		{"the last counts", "a.txt", "--a 1 --a 2", tree{"a": 2.0}},
		{"overrides", "a.txt", "x.a=1e-6 +x.b=null ++x.c='y' x.d=[1,x] x.e={a:1} x.f=[]", tree{"x": tree{"a": 1e-6, "b": nil, "c": "y", "d": []any{1.0, "x"}, "e": "{a:1}", "f": []any{}}}},
		{"a list of overrides", "overrides.yaml", "- x.a=1\n- x.b=True\n- ~x.a\n", tree{"x": tree{"b": true}}},
		{"a value and what lies below it", "a.txt", "--a 1 --a.b 2", tree{"a": 1.0, "a.b": 2.0}},
		{"a script", "a.sh", "set -x\n# python3 --not this\nLR=1e-6\nN=$((1024 * (2 + LEN)))\nexport B=\"$LR\"\npython3 -m verl.main \\\n  a.lr=$LR \\\n  a.b=\"${B}\" a.c=${C:-0.5} \\\n  a.d='$LR' a.e=x\\ y # rest\necho a.f=1\n",
			tree{"a": tree{"lr": 1e-6, "b": 1e-6, "c": 0.5, "d": "$LR", "e": "x y"}}},
		{"a list of words", "a.sh", "ARGS=(\n  a.b=1 # one\n  a.c=2\n)\nARGS+=(a.d=3)\nrun \"${ARGS[@]}\" a.b=5 \"$@\"\n", tree{"a": tree{"b": 5.0, "c": 2.0, "d": 3.0}}},
		{"a variable of several words", "a.sh", "ARGS=\"a.b=1\n a.c=2\"\nrun $ARGS a.d=3\n", tree{"a": tree{"b": 1.0, "c": 2.0, "d": 3.0}}},
		{"a launcher", "a.sh", "accelerate launch --config_file x.yaml --n 8 train.py --a 1 --b f.py", tree{"a": 1.0, "b": "f.py"}},
		{"a launcher of a module", "a.sh", "deepspeed --num_gpus 8 --module openrlhf.cli.train_ppo_ray --a 1", tree{"a": 1.0}},
		{"a launcher of a module by its short flag", "a.sh", "torchrun --nnodes 1 -m verl.trainer.main_ppo a.b=1", tree{"a": tree{"b": 1.0}}},
		{"another command before --", "a.sh", "ray job submit --address=x -- python3 -m openrlhf.cli --a 1", tree{"a": 1.0}},
		{"the command with the most arguments", "a.sh", "ray start --head\npython3 -m x --a 1 --b 2; ray stop --force\n", tree{"a": 1.0, "b": 2.0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := config.Parse(c.file, []byte(c.text))
			require.NoError(t, err)
			require.Equal(t, c.want, f.Tree)
			require.Empty(t, f.Unread)
		})
	}
}

// What a file does not hold is taken out and listed.
func TestUnread(t *testing.T) {
	for _, c := range []struct {
		name, file, text string
		want             tree
		unread           []config.Unread
	}{
		{"of another file", "a.yaml", "defaults: [x]\na: ???\nb: ${c.d}\ne: [1, '${f}']\ng: 1\n", tree{"g": 1.0},
			[]config.Unread{{"defaults", "other files, which are not followed; .hydra/config.yaml of the run says all"}, {"a", "???"}, {"b", "${c.d}"}, {"e", "${f}"}}},
		{"a cycle", "a.yaml", "a: ${b}\nb: ${a}\n", tree{}, []config.Unread{{"a", "${b}"}, {"b", "${a}"}}},
		{"a mapping", "a.yaml", "a: ${b}\nb: {c: 1}\n", tree{"b": tree{"c": 1.0}}, []config.Unread{{"a", "${b}"}}},
		{"a resolver", "a.yaml", "a: ${oc.env:HOME}\n", tree{}, []config.Unread{{"a", "${oc.env:HOME}"}}},
		{"of the shell", "a.sh", "run x.a=$A x.b=\"${B}/c\" x.c=$(date) x.d=`date` x.e=${E:-$F} x.f=$((1 / 0)) x.g=${#G} x.h=1", tree{"x": tree{"h": 1.0}},
			[]config.Unread{{"x.a", "$A"}, {"x.b", "${B}"}, {"x.c", "$(date)"}, {"x.d", "`date`"}, {"x.e", "${E:-$F}"}, {"x.f", "$((1 / 0))"}, {"x.g", "${#G}"}}},
		{"a variable made of one that is not there", "a.sh", "A=$B/c\nrun x.a=$A x.b=2", tree{"x": tree{"b": 2.0}}, []config.Unread{{"x.a", "$B"}}},
		{"in a branch", "a.sh", "if [ $# -eq 0 ]; then\n  A=1\nelse\n  A=2\nfi\nrun x.a=$A x.b=2", tree{"x": tree{"b": 2.0}}, []config.Unread{{"x.a", "set in a branch of the script"}}},
		{"after a condition", "a.sh", "A=1\n[ x ] && A=2\nrun x.a=$A x.b=2", tree{"x": tree{"b": 2.0}}, []config.Unread{{"x.a", "set in a branch of the script"}}},
		{"what was said before", "a.sh", "run x.a=1 x.a=$A x.b=2", tree{"x": tree{"b": 2.0}}, []config.Unread{{"x.a", "$A"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := config.Parse(c.file, []byte(c.text))
			require.NoError(t, err)
			require.Equal(t, c.unread, f.Unread)
			require.Equal(t, c.want, f.Tree)
		})
	}
}

func TestProgram(t *testing.T) {
	for text, want := range map[string]string{
		"python3 -m verl.trainer.main_ppo a.b=1":            "python3 -m verl.trainer.main_ppo",
		"trl grpo --beta 0":                                 "trl grpo",
		"--beta 0":                                          "",
		"accelerate launch --n 1 grpo.py --beta 0":          "accelerate launch grpo.py",
		"X=1 Y=2 python3 -m openrlhf.cli.train_ppo_ray --a": "python3 -m openrlhf.cli.train_ppo_ray",
	} {
		f, err := config.Parse("a.sh", []byte(text))
		require.NoError(t, err)
		require.Equal(t, want, f.Program, text)
	}
}

// A word that the script does not decide may be any arguments; as the value of a flag it is one.
func TestOpenCommands(t *testing.T) {
	for text, want := range map[string]bool{
		"python3 x.py --a 1 --b": false, "python3 x.py --a $A --b": false, "python3 x.py --a 1 $MORE": true, "python3 x.py $MORE --a 1": true,
		"MORE=2\npython3 x.py --a 1 $MORE": false,
	} {
		f, err := config.Parse("a.sh", []byte(text))
		require.NoError(t, err)
		require.Equal(t, want, f.Open, text)
	}
}

func TestRefused(t *testing.T) {
	laughs := "a: &a [x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c <= 'j'; c++ {
		laughs += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+string(c-1)+", ", 8) + "*" + string(c-1) + "]\n"
	}
	doubling := "A=" + strings.Repeat("x", 1000) + "\n" + strings.Repeat("A=$A$A\n", 30) + "run a.b=$A\n"
	for _, c := range []struct{ name, file, text, want string }{
		{"billion laughs", "a.yaml", laughs, "anchors"},
		{"merge key", "a.yaml", "a: {<<: {b: 1}}\n", "merge"},
		{"a tag", "a.yaml", "a: !!python/object/apply:os.system [ls]\n", "tag"},
		{"a tag of the core", "a.yaml", "a: !!int 3\n", "tag"},
		{"deep YAML", "a.yaml", strings.Repeat("[", 10001) + strings.Repeat("]", 10001), ""},
		{"deep, but not too deep for the library", "a.yaml", "a: " + strings.Repeat("[", 200) + strings.Repeat("]", 200), "more than 64"},
		{"deep JSON", "a.json", strings.Repeat(`{"a":`, 10001) + "1" + strings.Repeat("}", 10001), "deeper than 64"},
		{"JSON of one too many", "a.json", strings.Repeat(`{"a":`, 66) + "1" + strings.Repeat("}", 66), "deeper than 64"},
		{"JSON without an end", "a.json", `{"beta":`, "byte 8: found the end of the data"},
		{"two documents", "a.yaml", "a: 1\n---\nb: 2\n", "second document"},
		{"duplicate key", "a.yaml", "a: 1\nb: 2\na: 3\n", `the key "a" is given twice`},
		{"duplicate key in JSON", "a.json", `{"a": 1, "a": 2}`, "a"},
		{"NUL", "a.yaml", "a: 1\x00\n", "NUL"},
		{"no UTF-8", "a.yaml", "a: \xff\n", "UTF-8"},
		{"NaN in JSON", "a.json", `{"a": NaN}`, ""},
		{"a list in JSON", "a.json", `[1]`, ""},
		{"trailing text in JSON", "a.json", `{"a": 1} x`, ""},
		{"a key that is no scalar", "a.yaml", "? [a]\n: 1\n", "plain key"},
		{"a scalar", "a.yaml", "hello\n", "want a mapping"},
		{"nothing", "a.yaml", "", "is empty"},
		{"comments alone", "a.yaml", "# a\n", "is empty"},
		{"a list of numbers", "a.yaml", "- 1\n- 2\n", "not of arguments"},
		{"no YAML", "a.yaml", "a: [1\n", "no YAML"},
		{"an open quote", "a.sh", "run a.b='x\n", "without its end"},
		{"an open double quote", "a.sh", "run a.b=\"x\n", "without its end"},
		{"an open expansion", "a.sh", "run a.b=${x\n", "without its end"},
		{"doubling variables", "a.sh", doubling, "bytes"},
		{"large", "a.yaml", strings.Repeat("#", 1<<20+1), "at most"},
	} {
		t.Run(c.name, func(t *testing.T) {
			started := time.Now()
			f, err := config.Parse(c.file, []byte(c.text))
			if c.name == "a list in JSON" {
				require.NoError(t, err) // no object: words
				require.Empty(t, f.Tree)
				return
			}
			require.Error(t, err)
			require.ErrorContains(t, err, c.want)
			require.Less(t, time.Since(started), 5*time.Second)
		})
	}
}

// A quarter of a megabyte of anything takes seconds at most, on a slow machine under the race detector too.
func TestTime(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds under the race detector")
	}
	for i, unit := range []string{"a.", "--a ", "--a=1 ", "$A ", "A=$A;", "a.b=$A ", "a ", "[", "- ", "a: {", "? ", "$((", "\"", "'", "${", "${A}", "(", "a=(", "\n", "\\\n", "if ", "#", "~a ",
		"- a\n", "\"a\": ", "{\"a\":"} {
		if i%cases.Every != 0 {
			continue
		}
		for _, name := range []string{"a.yaml", "a.sh"} {
			started := time.Now()
			text := strings.Repeat(unit, 1<<18/len(unit))
			_, _ = config.Parse(name, []byte(text))
			_, _ = config.Parse(name, []byte(text[:len(text)-8]+"x=1 b.c=2"))
			require.Less(t, time.Since(started), 10*time.Second, "%s %q", name, unit)
		}
	}
}

func TestRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	require.NoError(t, os.WriteFile(file, []byte("a: &x 1\n"), 0o666))
	_, err := config.Read(file)
	require.ErrorContains(t, err, file+": line 1")
	_, err = config.Read(filepath.Dir(file))
	require.ErrorContains(t, err, "directory")
	_, err = config.Read(file + "x")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(file, make([]byte, 2<<20), 0o666))
	_, err = config.Read(file)
	require.ErrorContains(t, err, "at most")
}

func TestMerge(t *testing.T) {
	base, err := config.Parse("a.yaml", []byte("a: {b: 1, c: 2}\nd: 3\n"))
	require.NoError(t, err)
	over, err := config.Parse("o.yaml", []byte("- a.b=5\n- ~a.c\n- e.f=1\n- ~d\n"))
	require.NoError(t, err)
	base.Merge(over)
	require.Equal(t, tree{"a": tree{"b": 5.0}, "e": tree{"f": 1.0}}, base.Tree)
	base.Tree["e"].(tree)["f"] = 2.0
	require.Equal(t, 1.0, over.Tree["e"].(tree)["f"], "trees are not shared")
}

// JSON is YAML: both readers see the same tree in a JSON text.
func TestJSONIsYAML(t *testing.T) {
	word := rapid.StringMatching(`[a-zA-Z0-9_ .:#'$-]{0,8}`)
	var value func(depth int) *rapid.Generator[any]
	value = func(depth int) *rapid.Generator[any] {
		leaf := []*rapid.Generator[any]{
			rapid.Just[any](nil), rapid.Just[any](true), rapid.Just[any](false), rapid.Map(word, func(s string) any { return s }),
			rapid.Map(rapid.IntRange(-1e6, 1e6), func(n int) any { return float64(n) / 64 }),
		}
		if depth > 0 {
			leaf = append(leaf, rapid.Map(rapid.SliceOfN(value(depth-1), 0, 4), func(l []any) any { return append([]any{}, l...) }),
				rapid.Map(rapid.MapOfN(word, value(depth-1), 0, 4), func(m map[string]any) any { return m }))
		}
		return rapid.OneOf(leaf...)
	}
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.MapOfN(rapid.StringMatching(`[a-z_]{1,6}`), value(2), 1, 5).Draw(t, "tree")
		text, err := json.Marshal(want)
		require.NoError(t, err)
		if strings.Contains(string(text), "${") {
			t.Skip("an interpolation")
		}
		for _, name := range []string{"a.json", "a.yaml"} {
			f, err := config.Parse(name, text)
			require.NoError(t, err, "%s %s", name, text)
			require.Equal(t, want, f.Tree, "%s", text)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"a: 1\nb: [x, {c: ${a}}]\n", `{"a": {"b": [1, null]}}`, "--a 1 --b=x a.b=[1,2] ~c\n", "A=1\nrun a.b=${A:-2} c.d=$((A * 2)) \"${L[@]}\"\n",
		"if x; then\nA=(a.b=1)\nfi\nrun ${A[@]}\n", "a: &x [*x]\n", "? a\n: b\n"} {
		for _, name := range []string{"a.yaml", "a.json", "a.sh"} {
			f.Add(name, seed)
		}
	}
	f.Fuzz(func(t *testing.T, name, text string) {
		c, err := config.Parse(name, []byte(text))
		if err != nil {
			return
		}
		var known func(v any)
		known = func(v any) {
			switch v := v.(type) {
			case nil, bool, float64, string:
			case []any:
				for _, e := range v {
					known(e)
				}
			case map[string]any:
				for _, e := range v {
					known(e)
				}
			default:
				t.Fatalf("a value of the type %T", v)
			}
		}
		known(c.Tree)
	})
}
