package block

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/op"
)

// bytesOf are the instructions that stand as bytes in a source, each with the text in its comment turned into that of the GNU assembler.
func bytesOf(t *testing.T, file string) (code []byte, text []string) {
	source, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, line := range strings.Split(string(source), "\n") {
		if !strings.Contains(line, "BYTE") {
			continue
		}
		head, comment, ok := strings.Cut(line, "//")
		require.True(t, ok, "%s: bytes without their instruction: %s", file, line)
		for _, b := range regexp.MustCompile(`BYTE \$0x([0-9a-f]{2})`).FindAllStringSubmatch(head, -1) {
			v, err := strconv.ParseUint(b[1], 16, 8)
			require.NoError(t, err)
			code = append(code, byte(v))
		}
		text = append(text, gnu(t, strings.TrimSpace(comment)))
	}
	return code, text
}

// gnu is an instruction as the GNU assembler writes it; Go's names operands in the same order, that of AT&T.
func gnu(t *testing.T, instruction string) string {
	name, operands, _ := strings.Cut(instruction, " ")
	register := func(r string) string {
		switch {
		case strings.HasPrefix(r, "TMM"), regexp.MustCompile(`^R\d+$`).MatchString(r):
			return "%" + strings.ToLower(r)
		case regexp.MustCompile(`^Z\d+$`).MatchString(r):
			return "%zmm" + r[1:]
		}
		require.Regexp(t, `^[A-D]X$|^[SD]I$`, r, instruction)
		return "%r" + strings.ToLower(r)
	}
	var all []string
	for _, o := range strings.Split(operands, ", ") {
		if m := regexp.MustCompile(`^(\d*)\((\w+)\)(?:\((\w+)\*1\))?$`).FindStringSubmatch(o); m != nil {
			o = m[1] + "(" + register(m[2]) + ")"
			if m[3] != "" {
				o = m[1] + "(" + register(m[2]) + "," + register(m[3]) + ",1)"
			}
		} else if o != "" {
			o = register(o)
		}
		all = append(all, o)
	}
	return strings.ToLower(name) + " " + strings.Join(all, ", ")
}

// The bytes are what the system's assembler makes of the instructions.
func TestEncodings(t *testing.T) {
	as, err := exec.LookPath("as")
	if err != nil {
		op.Skip(t, "as", "there is no assembler: "+err.Error())
	}
	assemble := func(text, object string) ([]byte, error) {
		cmd := exec.Command(as, "--64", "-o", object, "-")
		cmd.Stdin = strings.NewReader(text)
		return cmd.CombinedOutput()
	}
	if log, err := assemble("vdpbf16ps %zmm0, %zmm1, %zmm2\ntdpbf16ps %tmm0, %tmm1, %tmm2\n", filepath.Join(t.TempDir(), "o")); err != nil {
		op.Skip(t, "as", "this assembler does not know AVX512-BF16 or AMX: "+string(log))
	}
	n := 0
	cpu := filepath.Join("..", "cpu")
	for _, file := range []string{"bf16_amd64.s", "amx_amd64.s", filepath.Join(cpu, "probe512_amd64.s"), filepath.Join(cpu, "probe_amx_amd64.s")} {
		code, text := bytesOf(t, file)
		require.NotEmpty(t, text, file)
		n += len(text)
		object := filepath.Join(t.TempDir(), "o")
		log, err := assemble(strings.Join(text, "\n")+"\n", object)
		require.NoError(t, err, "%s", log)
		f, err := elf.Open(object)
		require.NoError(t, err)
		made, err := f.Section(".text").Data()
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.True(t, bytes.Equal(code, made), "%s: the bytes are not those of the instructions in the comments", file)
	}
	t.Logf("%d instructions", n)
}
