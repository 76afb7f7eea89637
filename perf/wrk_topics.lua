-- wrk -s perf/wrk_topics.lua URL -- TOPICS BEHIND [BODY_FILE]
-- POSTs of one body, or GETs, of URL1BEHIND, URL2BEHIND, … chosen at random; a summary as one line of JSON behind
-- wrk's own report.

local requests = {}

function init(args)
  if args[3] then
    local file = assert(io.open(args[3], "rb"))
    wrk.method = "POST"
    wrk.body = file:read("*a")
    file:close()
    wrk.headers["Content-Type"] = "application/json"
  end
  for number = 1, tonumber(args[1]) do
    requests[number] = wrk.format(nil, wrk.path .. number .. args[2])
  end
  math.randomseed(1)
end

function request()
  return requests[math.random(#requests)]
end

function done(summary, latency, _)
  local errors = summary.errors
  io.write(string.format(
    'JSON {"requests":%d,"duration_us":%d,"bytes":%d,"failed":%d,"p50":%d,"p90":%d,"p99":%d,"max":%d}\n',
    summary.requests, summary.duration, summary.bytes,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    latency:percentile(50), latency:percentile(90), latency:percentile(99), latency.max))
end
