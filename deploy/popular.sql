-- Popular queries of a log of any size, for `foretype build --popular`. This one statement runs unchanged on Amazon
-- Athena (engine 3), Spark (3.4 and later) and DuckDB. It gives what `foretype popular` gives: the same rows in the
-- same order.
--
-- It reads a table or view `query_log` with the columns `query` (a text) and `uses` (a whole number), such as
--   CREATE VIEW query_log AS SELECT search_text AS query, 1 AS uses FROM my_log WHERE day >= '2026-01-01'
--
-- A query is counted as it stands on one line: every control character and every kind of white space becomes a space,
-- of several spaces one stays, and none around the query. What to change, both near the end: the least uses of a query
-- (5), and the most queries (1000000).
WITH as_logged AS (
    -- A log has many uses of few texts: what follows is done once for each text.
    SELECT query, sum(uses) AS uses FROM query_log GROUP BY query
),
gaps AS (
    SELECT
        chr(0) || chr(1) || chr(2) || chr(3) || chr(4) || chr(5) || chr(6) || chr(7) || chr(8) ||
        chr(9) || chr(10) || chr(11) || chr(12) || chr(13) || chr(14) || chr(15) || chr(16) || chr(17) ||
        chr(18) || chr(19) || chr(20) || chr(21) || chr(22) || chr(23) || chr(24) || chr(25) || chr(26) ||
        chr(27) || chr(28) || chr(29) || chr(30) || chr(31) || chr(127) || chr(128) || chr(129) || chr(130) ||
        chr(131) || chr(132) || chr(133) || chr(134) || chr(135) || chr(136) || chr(137) || chr(138) || chr(139) ||
        chr(140) || chr(141) || chr(142) || chr(143) || chr(144) || chr(145) || chr(146) || chr(147) || chr(148) ||
        chr(149) || chr(150) || chr(151) || chr(152) || chr(153) || chr(154) || chr(155) || chr(156) || chr(157) ||
        chr(158) || chr(159) ||
        -- White space beyond ASCII: U+00A0, U+1680, U+2000 to U+200A, U+2028, U+2029, U+202F, U+205F and U+3000.
        '                 　' AS characters
),
one_line AS (
    -- Behind `translate` no control characters are left, so that two of them can mark the ends of a space.
    SELECT
        trim(replace(replace(replace(
            translate(query, characters, rpad('', 83, ' ')),
            ' ', chr(1) || chr(2)), chr(2) || chr(1), ''), chr(1) || chr(2), ' ')) AS query,
        uses
    FROM as_logged CROSS JOIN gaps
)
SELECT query, CAST(sum(uses) AS bigint) AS total
FROM one_line
WHERE query <> ''
GROUP BY query
HAVING sum(uses) >= 5
ORDER BY total DESC, query
LIMIT 1000000
