package expr

import (
	"cmp"
	"slices"
	"strings"
)

// hint is the end of a message about an unknown name: the nearest of the known ones, or a list of them.
func hint(name string, known []string) string {
	if len(known) == 0 {
		return ""
	}
	type near struct {
		name string
		dist int
	}
	var close []near
	if len(name) <= pathSegmentBytes {
		for _, k := range known {
			if d := distance(strings.ToLower(name), strings.ToLower(k)); d <= max(1, min(len(name), len(k))/3) {
				close = append(close, near{k, d})
			}
		}
	}
	if len(close) > 0 {
		slices.SortStableFunc(close, func(a, b near) int { return cmp.Or(cmp.Compare(a.dist, b.dist), cmp.Compare(a.name, b.name)) })
		names := make([]string, 0, 3)
		for _, c := range close[:min(len(close), 3)] {
			names = append(names, shortKey(c.name))
		}
		return "; did you mean " + strings.Join(names, " or ") + "?"
	}
	names := make([]string, 0, enumShownMax)
	for _, k := range known[:min(len(known), enumShownMax)] {
		names = append(names, shortKey(k))
	}
	if len(known) > enumShownMax {
		names = append(names, "...")
	}
	return "; known are " + strings.Join(names, ", ")
}

// distance is the number of letters to change, insert, drop or swap with their neighbour.
func distance(a, b string) int {
	if len(a) > pathSegmentBytes || len(b) > pathSegmentBytes {
		return pathSegmentBytes
	}
	before, last, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			c := 1
			if a[i-1] == b[j-1] {
				c = 0
			}
			cur[j] = min(last[j]+1, cur[j-1]+1, last[j-1]+c)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
		before, last, cur = last, cur, before
	}
	return last[len(b)]
}
