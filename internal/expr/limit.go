package expr

// The limits of the package stand together here. None of them can be configured: two nodes must never
// disagree on whether an expression or a document is acceptable.
const (
	// SourceBytesMax is the longest expression, in bytes of UTF-8.
	SourceBytesMax = 8 << 10
	// ResultBytesMax is the longest JSON document that an evaluation may yield, in bytes. It is also the
	// longest string that may come up on the way.
	ResultBytesMax = 256 << 10
	// DocumentBytesMax is the longest JSON document that is read, in bytes.
	DocumentBytesMax = 1 << 20
	// NestingMax is how many arrays and objects of a JSON document may be inside one another.
	NestingMax = 64
	// SchemaBytesMax is the longest JSON Schema, in bytes.
	SchemaBytesMax = 64 << 10
	// CostMax bounds the work of one evaluation, in the cost units of cel.CostLimit: a look at a field or a call
	// is about 1, ten characters of text are 1. The worst expression ends within some 20 ms.
	CostMax = 100_000
	// CostEstimateMax bounds what the checker expects an expression to cost at worst. Sizes that a schema
	// doesn't bound (maxItems, maxLength) are taken for stringSizeAssumed and listSizeAssumed, so two nested
	// loops over unbounded lists pass and three don't.
	CostEstimateMax = 10_000_000
	// FieldsMax is how many fields one object mapping may have, VarsMax how many variables an environment.
	FieldsMax = 256
	VarsMax   = 512
)

const (
	astNodesMax          = 2048    // after the expansion of macros
	parseDepthMax        = 64      // brackets, operators and calls inside one another
	parseErrorsMax       = 8       // attempts of the parser to go on after an error
	comprehensionsMax    = 6       // loops inside one another, or in one chain
	patternBytesMax      = 256     // a regular expression's source
	patternProgramMax    = 512     // its compiled size, in instructions
	matchWorkMax         = 1 << 20 // bytes of text x instructions of one match
	listItemsMax         = 50_000  // a list that an expression builds
	compareNodesMax      = 200_000 // values visited by one comparison
	numberDigitsMax      = 400     // a literal that is compared or computed with; others only pass through
	schemaNodesMax       = 4096    // subschemas
	validateBytesPerStep = 64
	schemaDepthMax       = 64        // subschemas inside one another
	validateStepsMax     = 1_000_000 // visits of (subschema, value) of one validation; large values count more
	enumShownMax         = 8         // values or names listed in a message
	messageBytesMax      = 600       // a message as a whole
	typeDepthMax         = 8         // lists of lists ... deeper ones are "any" to the checker
	stringSizeAssumed    = 1024
	listSizeAssumed      = 500
	objectSizeAssumed    = 64
	pathSegmentBytes     = 64
)
