package vram

import (
	"fmt"
	"strconv"
	"strings"
)

// Limit is how much memory there may be. "18GB" is read by some as 18·10⁹ bytes and by others as 18·2³⁰ (17,166 and 18,432
// MiB), so what lies between the two is a warning. A limit in GiB, MiB or bytes has one reading.
type Limit struct {
	Text  string
	Bytes float64 // by the smaller reading
	Hard  float64 // by the larger one
}

// ParseLimit reads a size with its unit: 18GB, 16GiB, 17166MiB.
func ParseLimit(text string) (Limit, error) {
	number := strings.TrimRight(text, "BKMGTikb")
	unit := text[len(number):]
	number = strings.TrimSpace(number)
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || !(v > 0) || v > 1e12 {
		return Limit{}, usage("--limit %q: want a size such as 18GB or 18GiB", text)
	}
	decimal, binary := map[string]float64{"MB": 1e6, "GB": 1e9, "TB": 1e12}[unit], map[string]float64{"MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}[unit]
	if exact := map[string]float64{"MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "B": 1}[unit]; exact > 0 {
		decimal, binary = exact, exact
	}
	if decimal == 0 {
		return Limit{}, usage("--limit %q: the unit is missing or unclear; write %sGB (10⁹ bytes) or %sGiB (2³⁰)", text, number, number)
	}
	if v*decimal < 1e6 {
		return Limit{}, usage("--limit %q: is less than one MB", text)
	}
	return Limit{Text: text, Bytes: v * decimal, Hard: v * binary}, nil
}

// String writes the limit in GB and GiB.
func (l Limit) String() string {
	if l.Bytes == l.Hard {
		return fmt.Sprintf("%s = %s", l.Text, Size(l.Bytes))
	}
	return fmt.Sprintf("%s = %s; read as GiB: %s", l.Text, Size(l.Bytes), Size(l.Hard))
}
