-- How far this server has written its append-only file.
-- Returns the server's run id, then bytes in the file, acknowledged bytes not in it yet, and the last write's status;
-- nothing after the run id where there is no such file.
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
local info = redis.call('INFO', 'persistence')
local function field(name) return string.match(info, name .. ':(%w+)') end
if field('aof_enabled') ~= '1' then return {run} end
return {run, tonumber(field('aof_current_size')), tonumber(field('aof_buffer_length')), field('aof_last_write_status')}
