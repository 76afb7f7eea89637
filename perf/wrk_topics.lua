-- wrk -s perf/wrk_topics.lua URL -- TOPICS REQUESTS BEHIND [BODY_FILE]
-- POSTs of a body, or GETs, of URL1BEHIND, URL2BEHIND, … chosen at random; a summary as one line of JSON behind wrk's
-- own report. REQUESTS are prepared, at least one for each topic; the "id" in the body of each is its own, so that as
-- many bytes go through everybody's caches whatever the number of topics.

local requests = {}

function init(args)
  local topics, behind, body = tonumber(args[1]), args[3], nil
  if args[4] then
    local file = assert(io.open(args[4], "rb"))
    wrk.method = "POST"
    body = file:read("*a")
    file:close()
    wrk.headers["Content-Type"] = "application/json"
  end
  for number = 1, math.max(topics, tonumber(args[2])) do
    if body then
      wrk.body = body:gsub('"id":%d+', '"id":' .. 10000000 + number, 1)
    end
    requests[number] = wrk.format(nil, wrk.path .. (number - 1) % topics + 1 .. behind)
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
